"""The benchmark's parts on figures worked out by hand, and (slow) the whole of it on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import tiny_bundle, tiny_checkpoint
from tiny_spiece import TINY_VOCAB_SIZE

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "export_vs_peers.py"
sys.path.insert(0, str(SCRIPT.parent))

from peers import install_size, measure, model_folder, report  # noqa: E402
from peers.rows import BASE, ROWS  # noqa: E402

from edge_albert.errors import CheckpointError, TokenizerError  # noqa: E402


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True)


# -- its parts ---------------------------------------------------------------------------------------------------------


def test_every_row_makes_its_file_or_opens_that_of_one_that_does():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert BASE in names
    makers = {row.name for row in ROWS if row.command}
    for row in ROWS:
        assert bool(row.command) != bool(row.made_by), row
        assert not row.made_by or row.made_by in makers
        assert row.plain == (not row.name.startswith("ours"))


def probe_result(cpu: float, anon: int | None) -> dict:
    times = {"min": 0.0, "p50": cpu, "p90": 0.0, "p99": 0.0, "mean": 0.0}
    run = {"length": 16, "runs": 1, "cpu_ms": times, "wall_ms": times, "anon_bytes": anon}
    facts = {"engine": "onnxruntime 1", "file_bytes": 12_000_000, "load_ms": 5.0, "load_anon_bytes": anon}
    return {**facts, "peak_rss_bytes": 90_000_000, "runs": [run]}


def table_of(text: str, heading: str) -> list[list[str]]:
    """The cells of the Markdown table whose header has `heading`, without header and rule."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if heading in line and line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_medians_over_rounds_and_ratios_to_the_expert():
    expert, ours = (next(row for row in ROWS if row.name == name) for name in ("expert", "ours"))
    agreement = {"max_difference": 0.01, "cosine": 0.999}
    rows = [
        measure._summary(
            expert, [probe_result(cpu, 40_000_000) for cpu in (90.0, 70.0, 80.0)], [9.0, 12.0, 10.0], agreement
        ),
        measure._summary(ours, [probe_result(60.0, None)], [], agreement),
    ]
    assert rows[0]["lengths"]["16"]["cpu_ms"] == 80.0
    assert rows[0]["export_seconds"] == 10.0
    machine = {"cpu": "C", "cpus": 2, "int8_instructions": [], "system": "S", "python": "3", "packages": {}}
    text = report.to_markdown(
        {
            "model": "M",
            "machine": machine,
            "date": "D",
            "commit": None,
            "base": "expert",
            "rounds": 3,
            "rows": rows,
            "agreement_sequences": "8 × 64",
            "skipped": {"naive-dynamo": "why"},
            "failed": {},
        }
    )
    assert table_of(text, "file MB") == [
        [expert.label, "12.00 (1.00)", "40.00 (1.00)", "40.00 (1.00)", "90.00 (1.00)"],
        [ours.label, "12.00 (1.00)", "–", "–", "90.00 (1.00)"],
    ]
    assert table_of(text, "export s") == [
        [expert.label, "10.0 (1.00)", "5.0 (1.00)", "80.0 (1.00)", "0.0100", "0.99900"],
        [ours.label, "–", "5.0 (1.00)", "60.0 (0.75)", "0.0100", "0.99900"],
    ]
    assert "naive-dynamo left out: why" in text


def test_without_the_expert_there_are_figures_and_no_ratios():
    assert report._cells([2.0, None], None, str) == ["2.0", "–"]
    assert report._cells([2.0, 4.0], 1, str) == ["2.0 (0.50)", "4.0 (1.00)"]
    assert report._cells([2.0, None], 1, str) == ["2.0", "–"]


def test_a_stand_in_tokenizer_has_the_size_asked_for():
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    for size in (TINY_VOCAB_SIZE, 5000):
        made = sentencepiece.SentencePieceProcessor(model_proto=model_folder.stand_in_tokenizer(size))
        assert made.get_piece_size() == size
        assert [made.id_to_piece(i) for i in range(5)] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
        assert not any("unused" in piece for piece in made.encode("the train leaves at seven", out_type=str))


def test_the_folder_to_export_gets_a_tokenizer_only_where_it_has_none(tmp_path):
    folder = tiny_checkpoint(tmp_path / "model")
    assert model_folder.prepare(folder, None, tmp_path) == folder
    spiece = (folder / "spiece.model").rename(tmp_path / "my.model")
    made = model_folder.prepare(folder, spiece, tmp_path)
    assert (made / "spiece.model").read_bytes() == spiece.read_bytes()
    assert (made / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert not (folder / "spiece.model").exists()
    with pytest.raises(TokenizerError, match="no such file"):
        model_folder.prepare(folder, tmp_path / "absent.model", tmp_path)
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        model_folder.prepare(tmp_path / "absent", None, tmp_path)


def test_pip_and_setuptools_do_not_count_as_installed():
    environment = (
        "pip", "pip-24.0.dist-info", "setuptools", "setuptools-65.5.0.dist-info", "_distutils_hack",
        "distutils-precedence.pth", "pkg_resources",
    )  # fmt: skip
    assert all(install_size._is_pip(name) for name in environment)
    assert not any(install_size._is_pip(name) for name in ("numpy", "numpy-2.4.6.dist-info", "pipeline", "typing.pth"))


def test_a_failing_export_is_reported_and_the_others_go_on(tmp_path):
    ours = next(row for row in ROWS if row.name == "ours")
    mapped = next(row for row in ROWS if row.name == "ours-mapped")
    plan = measure.Plan((ours, mapped), tmp_path / "absent", tmp_path / "work", (4,), 2, 1, TINY_VOCAB_SIZE)
    outcome = measure.run_plan(plan, say=lambda line: None)
    assert outcome.measured == []
    assert list(outcome.failed) == ["ours", "ours-mapped"]
    assert "the export failed" in outcome.failed["ours"]


def test_bad_input_is_one_line_and_status_2(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    work = ("--work", tmp_path / "work")
    done = run("--model", tmp_path / "absent", *work)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no config.json" in done.stderr
    done = run("--model", tiny_checkpoint(tmp_path / "model"), "--lengths", "4,65", *work)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "takes at most 64 tokens" in done.stderr
    done = run("--work", tmp_path / "model")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is not empty and not this benchmark's" in done.stderr
    assert (tmp_path / "model" / "config.json").is_file()
    done = run("--rows", "ours,theirs", *work)
    assert done.returncode == 2
    assert "no row is called theirs" in done.stderr


@pytest.mark.slow
def test_a_file_that_does_not_run_is_reported_and_the_others_are_compared(tmp_path):
    for module in ("torch", "transformers", "onnx", "onnxruntime"):
        pytest.importorskip(module)
    from peers.torch_side import agreement

    bundle = tiny_bundle(tmp_path / "bundle")
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes((bundle / "model.onnx").read_bytes()[:5000])
    found = agreement(tmp_path / "bundle-source", [damaged, bundle / "model.onnx"], [damaged])
    assert list(found[str(damaged)]) == ["error"]
    assert found[str(bundle / "model.onnx")]["cosine"] > 0.98


# -- the whole of it ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tiny_model_through_every_route(tmp_path):
    for module in ("torch", "transformers", "onnx", "onnxruntime"):
        pytest.importorskip(module)
    folder, work, output = tiny_checkpoint(tmp_path / "model"), tmp_path / "work", tmp_path / "result.json"
    done = run(
        "--model", folder, "--work", work, "--output", output, "--lengths", "4,16", "--rounds", 1, "--runs", 2,
        "--rows", "naive,expert,ours,ours-mapped",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text(encoding="utf-8"))
    assert (result["schema"], result["schema_version"]) == ("edge_albert.export_vs_peers", 1)
    assert (result["skipped"], result["failed"]) == ({}, {})
    rows = {row["name"]: row for row in result["rows"]}
    assert list(rows) == ["naive", "expert", "ours", "ours-mapped"]
    for name, row in rows.items():
        file = work / "rows" / name.removesuffix("-mapped") / "model.onnx"
        assert row["file_bytes"] == file.stat().st_size
        assert set(row["lengths"]) == {"4", "16"}
        assert all(figures["cpu_ms"] > 0 for figures in row["lengths"].values())
        assert row["agreement"]["cosine"] > 0.98
    assert rows["naive"]["file_bytes"] > rows["expert"]["file_bytes"]  # it leaves the shared layer in float
    assert rows["ours-mapped"]["export_seconds"] is None
    assert [row[0] for row in table_of(done.stdout, "file MB")] == [row["label"] for row in result["rows"]]
