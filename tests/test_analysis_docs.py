"""docs/analysis.md holds what its raw numbers say, and its pictures are legible on a phone, in light and in dark."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from importlib import import_module
from pathlib import Path

import pytest

from edge_albert.analysis import picture
from edge_albert.analysis.record import Part, block_of, refresh_document

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT, FOLDER = ROOT / "docs" / "analysis.md", ROOT / "docs" / "analysis"
PARTS = {"count": "count", "speed": "speed", "layers": "layers", "ablate": "ablation_report"}
_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def part_of(name: str) -> Part:
    if name == "layers":
        pytest.importorskip("torch")
    return import_module(f"edge_albert.analysis.{PARTS[name]}").PART


@pytest.mark.parametrize("name", PARTS)
def test_document_says_what_was_measured(name: str) -> None:
    block, raw = block_of(DOCUMENT.read_text(encoding="utf-8"), name), FOLDER / f"{name}.json"
    assert block is not None
    if not raw.exists():
        assert block.startswith("*Not measured yet:")
        return
    record = json.loads(raw.read_text(encoding="utf-8"))
    assert record["schema"] == f"edge_albert.analysis.{name}"
    assert {"seed", "commit", "machine", "command"} <= set(record)
    part = part_of(name)
    assert block == part.block(record, "analysis")
    for shown in part.pictures(record):
        assert (FOLDER / f"{shown}.svg").is_file()


@pytest.mark.parametrize("name", PARTS)
def test_pictures_are_drawn_from_the_raw_numbers(name: str) -> None:
    """Every number that a picture writes out is of the record: the same words, whatever version of matplotlib drew."""
    pytest.importorskip("matplotlib")
    raw = FOLDER / f"{name}.json"
    if not raw.exists():
        pytest.skip(f"{raw.name} was not measured yet")
    drawn = part_of(name).draw(json.loads(raw.read_text(encoding="utf-8")))
    for file, svg in drawn.items():
        assert words(svg) == words((FOLDER / f"{file}.svg").read_text(encoding="utf-8"))


def words(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter() if element.tag.endswith("}text")]


def test_a_block_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    part = Part("count", lambda record: record["table"], lambda record: {"count": "words"}, lambda record: {})
    record = {"table": "| a |", "command": "c", "commit": None, "machine": {"cpu": "cpu", "cpus": 2}}
    document = tmp_path / "docs" / "doc.md"
    document.parent.mkdir()
    document.write_text("before\n<!-- analysis: count -->\nold\n<!-- /analysis: count -->\nafter\n")
    for _ in range(2):
        refresh_document(part, record, document, tmp_path / "docs" / "pictures")
        text = document.read_text()
        assert text.startswith("before\n<!-- analysis: count -->\n![words](pictures/count.svg)\n\n| a |\n\nRaw numbers")
        assert text.endswith("on cpu (2 cores).\n<!-- /analysis: count -->\nafter\n")
        assert "old" not in text


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def svg() -> str:
    pytest.importorskip("matplotlib")
    names, values = ["a long name of a row", "b"], [3.0, 1.0]
    panels = [
        picture.bars("bars", names, values, ["three & more", "one"]),
        picture.curves("curves", [("first", [1, 2], [3, 4]), ("second", [1, 2], [4, 1])], "x", marks=[2], legend=True),
        picture.dots("dots", names, [[1.0, 2.0], [3.0]], ["1.5", "3.0"]),
    ]
    return picture.draw_svg(panels, "what it shows <in words>")


def test_picture_takes_its_ink_from_the_readers_scheme(svg: str) -> None:
    root = ET.fromstring(svg)
    title, style = list(root)[:2]
    assert title.text == "what it shows <in words>"
    assert "prefers-color-scheme:dark" in (style.text or "")
    colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6}|currentColor|none)", svg))
    assert colours <= {"currentColor", "none", *picture.COLOURS}
    assert {"currentColor", picture.COLOURS[0], picture.COLOURS[1]} <= colours
    texts = words(svg)
    assert {"three & more", "a long name of a row", "second"} <= set(texts)  # text, not outlines


def test_picture_is_as_wide_as_a_phone_with_letters_to_match(svg: str) -> None:
    root = ET.fromstring(svg)
    assert root.get("viewBox", "").split()[2] == "360"
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: ?(\d+(?:\.\d+)?)px", svg)]
    assert sizes
    assert min(sizes) >= 9


def test_same_panels_same_file() -> None:
    pytest.importorskip("matplotlib")
    one, other = (picture.draw_svg([picture.bars("t", ["a"], [1.0], ["1"])], "t") for _ in range(2))
    assert one == other


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("ink", "ground"), [picture.LIGHT, picture.DARK])
def test_contrast(ink: str, ground: str) -> None:
    """WCAG 2.2: 7 for text (AAA), 3 for what is drawn (1.4.11)."""

    def contrast(one: str, other: str) -> float:
        high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    assert contrast(ink, ground) >= 7
    for colour in picture.COLOURS:
        assert contrast(colour, ground) >= 3, colour


@pytest.mark.skipif(_CHROMIUM is None, reason="no Chromium is installed")
def test_browser_shows_the_picture(svg: str, tmp_path: Path) -> None:
    """Chromium's own reading of the file: ink in the style's colour, no error page of the XML parser."""
    file = tmp_path / "picture.svg"
    file.write_text(svg, encoding="utf-8")
    command = [str(_CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, "--dump-dom", file.as_uri()], capture_output=True, text=True, check=False, timeout=60
    )
    assert "parsererror" not in done.stdout
    assert "three &amp; more" in done.stdout


def test_no_path_of_a_machine_is_in_the_documents() -> None:
    for path in [DOCUMENT, *FOLDER.glob("*")]:
        assert not re.search(r"/(root|home|work|tmp|Users)/", path.read_text(encoding="utf-8")), path
