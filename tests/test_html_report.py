"""The HTML report: the figures of report.json are in the page, nothing of the input can break out of it, and a browser
shows it without an error, without sideways scrolling on a phone, in light and dark."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from edge_albert import report as report_command
from edge_albert.bundle import open_bundle
from edge_albert.errors import BundleError, DataError, EdgeAlbertError
from edge_albert.exporter import DEFAULT_MODEL, Request, export_bundle
from edge_albert.reports.apk import read_apk
from edge_albert.reports.html.export_page import size_parts, to_html

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("html") / "bundle"
    export_bundle(Request(str(DEFAULT_MODEL), folder, formats=("onnx", "tflite")))
    return folder


@pytest.fixture(scope="module")
def report(bundle: Path) -> dict:
    return json.loads((bundle / "report.json").read_text(encoding="utf-8"))


class _Reader(HTMLParser):
    """The page's visible text and its elements, by the standard library's parser."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.said: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "title"} & set(self.open):
            self.said.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.said).split())


def test_the_key_figures_are_in_the_text(report: dict) -> None:
    read = _Reader(to_html(report))
    assert read.open == []
    for facts in report["formats"].values():
        assert f"{facts['file_bytes']:,}" in read.text
        assert f"{facts['file_bytes'] / facts['floor_bytes']:.3f}" in read.text
        assert f"{facts['agreement']['mean_cosine']:.5f}" in read.text
        assert facts["engine"] in read.text
        for run in facts["runtime"]["runs"]:
            assert f"{run['wall_ms']['p50']:.2f} ms" in read.text
            assert f"{run['wall_ms']['p99']:.2f}" in read.text
    assert f"{report['model']['parameters']:,}" in read.text
    assert "each of the 10 weight matrices stands exactly once" in read.text


def test_the_page_fetches_nothing_and_runs_nothing(report: dict) -> None:
    page = to_html(report)
    read = _Reader(page)
    assert not [tag for tag, _ in read.elements if tag in ("script", "img", "iframe", "object")]
    assert [attributes["href"] for _, attributes in read.elements if "href" in attributes] == ["data:,"]
    assert "http" not in page
    assert "@import" not in page


def test_what_comes_from_the_input_cannot_break_out(report: dict) -> None:
    evil = "</style><script>alert(1)</script>\"'><b onmouseover=alert(2)>"
    changed = json.loads(json.dumps(report))
    changed["model"]["source"] = changed["command"] = evil
    changed["model"]["labels"] = [evil]
    read = _Reader(to_html(changed))
    assert not [tag for tag, _ in read.elements if tag == "script"]
    assert not [names for _, names in read.elements if "onmouseover" in names]
    assert evil in "".join(read.said)


def test_parts_of_the_size_add_up_to_the_file(report: dict) -> None:
    for facts in report["formats"].values():
        parts = size_parts(facts)
        assert sum(parts.values()) == facts["file_bytes"]
        assert parts["word embedding"] > 8000 * 64  # 8,000 rows of 64 int8 values, and their scales
        assert 0 < parts["graph, names, constants"] < 30_000
        assert min(parts.values()) > 0


def test_a_weight_that_stands_twice_is_shown_in_red(report: dict) -> None:
    changed = json.loads(json.dumps(report))
    changed["formats"]["onnx"]["copies"]["albert.pooler.weight"] = 2
    read = _Reader(to_html(changed))
    assert "model.onnx: not once: albert.pooler.weight: 2" in read.text
    assert ("p", {"class": "bad"}) in read.elements


def test_without_measurements_there_is_no_section_of_them(report: dict) -> None:
    changed = json.loads(json.dumps(report))
    for facts in changed["formats"].values():
        del facts["runtime"]
    text = _Reader(to_html(changed)).text
    assert "Latency" not in text
    assert "Memory" not in text
    assert "Agreement" in text


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(_CHROMIUM is None, reason="no Chromium here (Debian: chromium)")
@pytest.mark.parametrize("width", [390, 1000])
def test_a_browser_shows_it_without_an_error(report: dict, tmp_path: Path, width: int) -> None:
    """The page measures itself in the browser: a script added here writes what it found into the title."""
    probe = (
        "<script>onload=()=>{const d=document.documentElement,t=document.querySelectorAll('.track i');"
        "document.title=[d.scrollWidth,innerWidth,[...t].filter(e=>e.getBoundingClientRect().width>=1).length,"
        "t.length].join(' ')}</script>"
    )
    path = tmp_path / "page.html"
    path.write_text(to_html(report).replace("</body>", probe + "</body>"), encoding="utf-8")
    picture = tmp_path / "page.png"
    command = [_CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900"]
    dom = subprocess.run(
        [*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    subprocess.run([*command, f"--screenshot={picture}", path.as_uri()], capture_output=True, timeout=120, check=True)
    assert "CONSOLE" not in dom.stderr
    scroll, inner, drawn, bars = map(int, dom.stdout.partition("<title>")[2].partition("</title>")[0].split())
    assert scroll <= inner
    assert drawn == bars > 20
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000


# -- the command, and an APK -------------------------------------------------------------------------------------------


@pytest.fixture
def apk(bundle: Path, tmp_path: Path) -> Path:
    path = tmp_path / "demo.apk"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("AndroidManifest.xml", b"\x03\x00\x08\x00")
        archive.writestr("classes.dex", bytes(range(256)) * 40)
        archive.writestr("lib/arm64-v8a/libtensorflowlite_jni.so", b"\x7fELF" + bytes(5000), zipfile.ZIP_STORED)
        archive.write(bundle / "model.tflite", "assets/bundle/model.tflite", zipfile.ZIP_STORED)
    return path


def test_what_an_apk_weighs(bundle: Path, apk: Path) -> None:
    found = read_apk(apk, open_bundle(bundle))
    model = (bundle / "model.tflite").stat().st_size
    assert found["apk_bytes"] == apk.stat().st_size == sum(found["parts"].values())
    assert found["parts"]["native libraries, arm64-v8a"] == 5004
    assert found["parts"]["model"] == model
    expected = {"file": "assets/bundle/model.tflite", "bytes": model, "stored": True, "is_the_bundles": True}
    assert found["models"] == [expected]


def test_an_apk_with_faults_is_told(bundle: Path, apk: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(apk, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("assets/old/model.onnx", b"other")
    page = tmp_path / "page.html"
    assert report_command.main([str(bundle), "--apk", str(apk), "--output", str(page)]) == 0
    text = _Reader(page.read_text(encoding="utf-8")).text
    assert "one of 2 models in the APK; compressed: add its ending to noCompress" in text
    assert "not the model of this bundle" in text


@pytest.mark.parametrize("content", [b"PK\x03\x04 cut", b""])
def test_what_is_no_apk_is_refused(bundle: Path, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.apk"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.apk: cannot be read as an APK"):
        read_apk(path, open_bundle(bundle))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "a zip")
    with pytest.raises(DataError, match=r"no AndroidManifest\.xml"):
        read_apk(path, open_bundle(bundle))


def test_the_command_keeps_a_page_that_exists(bundle: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    with pytest.raises(EdgeAlbertError, match=r"page.html: exists already.*--force"):
        report_command.main([str(bundle), "--output", str(page)])
    assert page.read_text() == "mine"
    assert report_command.main([str(bundle), "--output", str(page), "--force"]) == 0
    assert "Agreement" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "report.json: cannot be read"),
        ("{", "report.json: not valid JSON"),
        ('{"schema": "other"}', "report.json: schema is not edge_albert.export_report"),
        (
            '{"schema": "edge_albert.export_report", "schema_version": 9}',
            "schema_version is 9, this edge_albert reads 1",
        ),
    ],
)
def test_a_report_that_cannot_be_read(bundle: Path, tmp_path: Path, content: str | None, said: str) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(bundle, copy)
    (copy / "report.json").unlink()
    if content is not None:
        (copy / "report.json").write_text(content)
    with pytest.raises(BundleError, match=said):
        report_command.main([str(copy), "--output", str(tmp_path / "page.html")])
    assert not (tmp_path / "page.html").exists()
