"""`python -m edge_albert.export` and `run`: a whole bundle or one clear line, exit status 2 and nothing left behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_models import tiny_checkpoint, tiny_config, tiny_tensors

import edge_albert
from edge_albert.bundle import open_bundle, write_manifest
from edge_albert.checkpoint import write_checkpoint
from edge_albert.errors import DataError
from edge_albert.export import main
from edge_albert.run import main as run_main
from edge_albert.runtime.engine import installed, open_engine
from edge_albert.runtime.selfcheck import self_check
from edge_albert.runtime.session import Session
from edge_albert.tasks import TASKS

pytest.importorskip("onnx")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "checkpoint")


def command(
    *words: object, module: str = "edge_albert.export", cwd: Path | None = None, **options
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        **options,
    )


# -- what comes out ---------------------------------------------------------------------------------------------------


def test_the_command_writes_a_bundle_that_answers(checkpoint, tmp_path):
    out = tmp_path / "bundle"
    done = command("--model", checkpoint, "--int8", "--output", out)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for word in (
        "checkpoint (text-classification",
        "model.onnx",
        "stands exactly once",
        "texts: same label",
        "p50 / p90 / p99",
    ):
        assert word in done.stdout
    assert sorted(path.name for path in out.iterdir()) == [
        "bundle.json", "golden.json", *["labels.txt"] * installed("tflite"), "model.onnx",
        *["model.tflite"] * installed("tflite"),
        "report.html", "report.json", "report.md", "spiece.model",
    ]  # fmt: skip
    answered = command(out, "the baker painted the blue door", "--json", module="edge_albert.run")
    assert answered.returncode == 0, answered.stderr
    answer = json.loads(answered.stdout)["answer"][0]
    assert answer["label"].startswith("label ")
    assert 1 / 3 <= answer["score"] <= 1


def test_json_report(checkpoint, tmp_path, capsys):
    assert main(["--model", str(checkpoint), "--output", str(tmp_path / "bundle"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "bundle" / "report.json").read_text())
    facts = report["formats"]["onnx"]
    assert facts["file_bytes"] == (tmp_path / "bundle" / "model.onnx").stat().st_size
    assert facts["floor_bytes"] == report["model"]["parameters"]
    assert report["model"]["parameters"] == sum(t.size for t in load_file(checkpoint / "model.safetensors").values())
    assert set(facts["copies"].values()) == {1}
    assert facts["agreement"]["texts"] >= 8
    assert facts["agreement"]["mean_cosine"] > 0.98
    runtime = facts["runtime"]
    assert [row["length"] for row in runtime["runs"]] == [16]  # the tiny model takes 64 tokens
    for row in runtime["runs"]:
        assert 0 < row["wall_ms"]["p50"] <= row["wall_ms"]["p90"] <= row["wall_ms"]["p99"]
    assert runtime["peak_rss_bytes"] > runtime["anon_bytes"] > 0


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_every_task_in_every_precision(tmp_path, task, precision):
    source = tiny_checkpoint(tmp_path / "source", task)
    out = tmp_path / "bundle"
    main(["--model", str(source), "--task", task, f"--{precision}", "--output", str(out), "--no-measure"])
    report = json.loads((out / "report.json").read_text())
    assert report["formats"]["onnx"]["agreement"]["mean_cosine"] > (0.97 if precision == "int8" else 0.9999)
    assert edge_albert.load(out).session.bundle.task.name == task


@pytest.mark.parametrize("format", ["onnx", "tflite"])
@pytest.mark.parametrize("precision", ["int4", "int8-static"])
def test_the_smaller_and_the_static_forms(checkpoint, tmp_path, precision, format):
    """From the command to the answer, by the project's own sentences; each weight still stands once."""
    if not installed(format):
        pytest.skip(f"no {format} engine is installed")
    out = tmp_path / "bundle"
    assert (
        main(["--model", str(checkpoint), f"--{precision}", "--format", format, "--output", str(out), "--no-measure"])
        == 0
    )
    report = json.loads((out / "report.json").read_text())
    facts = report["formats"][format]
    assert facts["agreement"]["mean_cosine"] > (0.9 if precision == "int4" else 0.98)
    assert set(facts["copies"].values()) == {1}
    assert edge_albert.load(out)("the blue door").label.startswith("label ")
    page = (out / "report.md").read_text()
    assert ("## Activation ranges" in page) == (precision == "int8-static")
    with Session(out) as session:
        assert self_check(session).passed


def test_a_calibration_file_is_used_again(checkpoint, tmp_path, capsys):
    from edge_albert.calibrate import main as calibrate

    source = ["--model", str(checkpoint)]
    assert calibrate([*source, "--data", few_texts(tmp_path), "--output", str(tmp_path / "ranges")]) == 0
    file = tmp_path / "ranges" / "calibration.json"
    export = [*source, "--format", "onnx", "--no-measure", "--calibration", str(file)]
    for name in ("one", "two"):
        capsys.readouterr()
        assert main([*export, "--int8-static", "--output", str(tmp_path / name)]) == 0
        assert "collect" not in capsys.readouterr().out
    assert (tmp_path / "one" / "model.onnx").read_bytes() == (tmp_path / "two" / "model.onnx").read_bytes()
    told = json.loads((tmp_path / "one" / "report.json").read_text())["calibration"]
    assert told["texts"] == json.loads(file.read_text())["texts"]
    other = tiny_checkpoint(tmp_path / "other", seed=1)
    with pytest.raises(DataError, match="another model"):
        main(["--model", str(other), "--int8-static", "--calibration", str(file), "--output", str(tmp_path / "three")])


def few_texts(folder: Path) -> str:
    (folder / "few.txt").write_text("\n".join(f"the baker painted {n} doors" for n in range(20)))
    return str(folder / "few.txt")


def test_mixed_precision_keeps_to_its_bytes(checkpoint, tmp_path):
    source = ["--model", str(checkpoint), "--format", "onnx", "--no-measure"]
    sizes = {}
    for precision, texts in (("int8", []), ("int4", ["--calibration-data", few_texts(tmp_path)])):
        main([*source, f"--{precision}", *texts, "--output", str(tmp_path / precision)])
        sizes[precision] = (tmp_path / precision / "model.onnx").stat().st_size
    limit = (sizes["int8"] + sizes["int4"]) // 2
    words = ["--mixed", str(limit), "--calibration-data", few_texts(tmp_path)]
    assert main([*source, *words, "--output", str(tmp_path / "mixed")]) == 0
    assert (tmp_path / "mixed" / "model.onnx").stat().st_size <= limit
    report = json.loads((tmp_path / "mixed" / "report.json").read_text())
    kinds = set(report["choice"]["precisions"].values())
    assert {"int8", "int4"} <= kinds
    schemes = {name: record["scheme"].split()[0] for name, record in report["formats"]["onnx"]["weights"].items()}
    assert schemes["pooler.weight"] == report["choice"]["precisions"]["pooler.weight"]


def test_a_loss_limits_how_many_answers_change(checkpoint, tmp_path):
    words = ["--model", str(checkpoint), "--format", "onnx", "--no-measure", "--max-loss", "5"]
    assert main([*words, "--calibration-data", few_texts(tmp_path), "--output", str(tmp_path / "bundle")]) == 0
    choice = json.loads((tmp_path / "bundle" / "report.json").read_text())["choice"]
    assert choice["points_lost"] <= 5
    assert choice["texts"] == 20


def test_golden_examples_are_what_the_file_answers(checkpoint, tmp_path):
    out = tmp_path / "bundle"
    main(["--model", str(checkpoint), "--output", str(out), "--no-measure"])
    bundle = open_bundle(out)
    engine = open_engine(bundle.model_path("onnx"))
    golden = bundle.golden()
    assert len(golden["examples"]) == 5
    for example, logits, reference in zip(
        golden["examples"], golden["outputs"]["onnx"], golden["reference"], strict=True
    ):
        ids = np.array([example["input_ids"]])
        feeds = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.array([example["token_type_ids"]]),
        }
        np.testing.assert_allclose(engine.run(feeds)["logits"][0], logits, atol=1e-4)
        np.testing.assert_allclose(logits, reference, atol=0.3)


def test_same_input_same_bytes(checkpoint, tmp_path):
    for name in ("one", "two"):
        main(["--model", str(checkpoint), "--output", str(tmp_path / name), "--no-measure"])
    for path in (tmp_path / "one").iterdir():
        if not path.name.startswith("report"):
            assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_unrolled_answers_the_same(checkpoint, tmp_path):
    answers = []
    for name, options in (("loop", []), ("unrolled", ["--unroll"])):
        main(["--model", str(checkpoint), "--output", str(tmp_path / name), "--no-measure", *options])
        answers.append(edge_albert.load(tmp_path / name)("the blue door"))
        assert open_bundle(tmp_path / name).manifest["models"]["onnx"]["form"] == name
    assert answers[0].label == answers[1].label
    assert answers[0].score == pytest.approx(answers[1].score, abs=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_checkpoints_work(tmp_path, dtype):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    source = tiny_checkpoint(tmp_path / "source")
    tensors = {name: t.to(getattr(torch, dtype)) for name, t in load_torch(source / "model.safetensors").items()}
    save_torch(tensors, source / "model.safetensors", metadata={"format": "pt"})
    assert main(["--model", str(source), "--output", str(tmp_path / "bundle"), "--no-measure"]) == 0
    report = json.loads((tmp_path / "bundle" / "report.json").read_text())
    assert report["formats"]["onnx"]["agreement"]["mean_cosine"] > 0.98


def test_torch_is_not_needed(checkpoint, tmp_path):
    code = (
        "import sys; from edge_albert.export import main\n"
        f"main(['--model', {str(checkpoint)!r}, '--output', {str(tmp_path / 'bundle')!r}, '--no-measure'])\n"
        "assert not {'torch', 'transformers', 'tensorflow'} & set(sys.modules), 'heavy import'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_android_assets_hold_what_an_app_needs(checkpoint, tmp_path):
    assets = tmp_path / "assets"
    arguments = ["--model", str(checkpoint), "--no-measure", "--format", "onnx", "--android", str(assets)]
    assert main([*arguments, "--output", str(tmp_path / "bundle")]) == 0
    bundle = open_bundle(assets / "bundle")
    assert set(bundle.manifest["files"]) == {"golden.json", "model.onnx", "spiece.model", "tokenizer_rules.bin"}
    assert bundle.model_hash("onnx") == open_bundle(tmp_path / "bundle").model_hash("onnx")
    assert "there already" in refused(*arguments, "--output", tmp_path / "second", cwd=tmp_path)


# -- bad input --------------------------------------------------------------------------------------------------------


def refused(*words: object, cwd: Path, module: str = "edge_albert.export") -> str:
    """The one line the command leaves with; nothing else may have been written beside what was there."""
    before = sorted(cwd.rglob("*"))
    done = command(*words, cwd=cwd, module=module)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("edge_albert: error: ")
    assert sorted(cwd.rglob("*")) == before
    return lines[0]


def drop(name: str):
    return lambda folder: (folder / name).unlink()


def edit_config(**changes):
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config.update(changes)
        (folder / "config.json").write_text(json.dumps(config))

    return change


def edit_tensors(change):
    def apply(folder: Path) -> None:
        tensors = dict(load_file(folder / "model.safetensors"))
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return apply


def truncate(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def not_a_number(tensors: dict) -> None:
    tensors["albert.pooler.weight"] = np.full_like(tensors["albert.pooler.weight"], np.nan)


def as_bert(tensors: dict) -> None:
    for name in list(tensors):
        tensors[name.replace("albert.", "bert.").replace("albert_layer_groups.0.albert_layers", "layer")] = tensors.pop(
            name
        )


def other_tokenizer(folder: Path) -> None:
    write_checkpoint(
        folder,
        tiny_config("text-classification", vocab_size=200),
        tiny_tensors(tiny_config("text-classification", vocab_size=200), "text-classification"),
        task="text-classification",
        tokenizer_folder=folder.parent / "checkpoint-tokenizer",
        force=True,
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop("config.json"), "config.json"),
        (drop("model.safetensors"), "model.safetensors"),
        (drop("spiece.model"), "spiece.model"),
        (truncate, "model.safetensors"),
        (edit_tensors(not_a_number), "albert.pooler.weight"),
        (edit_tensors(as_bert), "BERT"),
        (edit_config(model_type="bert"), "model_type is 'bert'"),
        (edit_config(model_type="roberta"), "model_type is 'roberta'"),
        (edit_config(id2label={"0": "ham", "1": "spam"}, label2id={"ham": 0, "spam": 1}), "classifier.weight"),
        (edit_config(hidden_size=63), "hidden_size 63"),
        (edit_config(hidden_size=128), "attention.value.bias (64,), not (128,)"),
        (other_tokenizer, "has 176 entries, the model's vocab_size is 200"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_checkpoints_are_refused(checkpoint, tmp_path, damage, message):
    damage(checkpoint)
    assert message in refused("--model", checkpoint, "--output", tmp_path / "bundle", cwd=tmp_path)


def test_no_such_folder(tmp_path):
    assert "absent" in refused("--model", tmp_path / "absent", cwd=tmp_path)


def test_a_checkpoint_without_a_head_says_what_to_do(tmp_path):
    source = tiny_checkpoint(tmp_path / "source", "sentence-embedding")
    assert "--task sentence-embedding" in refused("--model", source, "--output", "out", cwd=tmp_path)


def test_existing_output_is_kept_unless_forced(checkpoint, tmp_path):
    out = tmp_path / "bundle"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert "--force" in refused("--model", checkpoint, "--output", out, cwd=tmp_path)
    assert (out / "notes.txt").read_text() == "mine"
    assert main(["--model", str(checkpoint), "--output", str(out), "--force", "--no-measure"]) == 0
    assert not (out / "notes.txt").exists()
    assert open_bundle(out)


def test_full_disk_leaves_nothing_behind(checkpoint, tmp_path):
    """A limit on the size of a written file stands for the full disk; the kernel refuses the model's later bytes."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "from edge_albert.export import main; from edge_albert.cli import run_command\n"
        "run_command(lambda _: main(sys.argv[1:]))"
    )
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", code, "--model", str(checkpoint), "--output", str(tmp_path / "bundle")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "bundle" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_killed_export_leaves_nothing_that_looks_like_a_bundle(checkpoint, tmp_path, monkeypatch):
    from edge_albert import exporter

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(exporter, "_measure", interrupted)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        main(["--model", str(checkpoint), "--output", str(tmp_path / "bundle")])
    assert sorted(tmp_path.rglob("*")) == before


def change_golden(folder: Path, change) -> None:
    """Edit golden.json and make the manifest agree, as a faulty exporter might have written it."""
    golden = json.loads((folder / "golden.json").read_text())
    change(golden)
    (folder / "golden.json").write_text(json.dumps(golden))
    manifest = json.loads((folder / "bundle.json").read_text())
    files = list(manifest.pop("files"))
    write_manifest(folder, {k: v for k, v in manifest.items() if not k.startswith("format")}, files)


def test_self_check_passes_here_and_finds_what_is_wrong(bundle, capsys):
    with Session(bundle) as session:
        found = self_check(session)
    assert found.passed
    assert (found.texts, found.other_ids) == (5, ())
    assert run_main([str(bundle), "--check"]) == 0
    change_golden(bundle, lambda golden: golden["outputs"]["onnx"][2].__setitem__(0, 99.0))
    assert run_main([str(bundle), "--check"]) == 1
    assert "allowed" in capsys.readouterr().out
    change_golden(bundle, lambda golden: golden["examples"][0]["input_ids"].insert(1, 7))
    with Session(bundle) as session:
        assert len(self_check(session).other_ids) == 1


@pytest.fixture
def bundle(checkpoint, tmp_path) -> Path:
    main(["--model", str(checkpoint), "--output", str(tmp_path / "bundle"), "--no-measure"])
    return tmp_path / "bundle"


def test_run_refuses_a_damaged_bundle(bundle, tmp_path):
    content = bytearray((bundle / "model.onnx").read_bytes())
    content[1000] ^= 1
    (bundle / "model.onnx").write_bytes(content)
    assert "model.onnx: sha256" in refused(bundle, "the door", cwd=tmp_path, module="edge_albert.run")


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "text 1: empty"), ("☃☃", "vocabulary"), ("the door " * 100, "the model takes 64")],
    ids=["empty", "unknown", "long"],
)
def test_run_refuses_texts_it_cannot_answer(bundle, tmp_path, text, message):
    assert message in refused(bundle, text, cwd=tmp_path, module="edge_albert.run")


def test_run_answers_the_other_lines_of_standard_input(bundle):
    done = command(bundle, module="edge_albert.run", input="the blue door\n\na map and a lamp\n")
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr.strip() == "edge_albert: error: line 2: empty: give at least one word"


def test_run_without_a_bundle(tmp_path):
    shutil.rmtree(tmp_path / "nothing", ignore_errors=True)
    assert "no such folder" in refused("nothing", "a text", cwd=tmp_path, module="edge_albert.run")


# -- the console script -----------------------------------------------------------------------------------------------


def test_console_script_is_the_same_code(checkpoint, tmp_path):
    done = command(
        "export", "--model", checkpoint, "--output", tmp_path / "bundle", "--no-measure", module="edge_albert.cli"
    )
    assert done.returncode == 0, done.stderr
    assert open_bundle(tmp_path / "bundle")


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("export", "safetensors", "export"),
        ("export", "onnx", "export"),
        ("finetune", "torch", "train"),
        ("pretrain", "torch", "train"),
    ],
)
@pytest.mark.parametrize("script", [False, True])
def test_a_missing_package_is_named_with_its_extra(tmp_path, name, package, extra, script):
    run = (
        f"from edge_albert.cli import main; main([{name!r}, *sys.argv[1:]])"
        if script
        else f"import runpy; runpy.run_module('edge_albert.{name}', run_name='__main__')"
    )
    arguments = {"export": ["--output", "out", "--format", "onnx"], "pretrain": ["--resume", "absent"]}.get(
        name, ["--task", "text-classification", "--model", "tiny", "--train", "a", "--dev", "a", "--output", "out"]
    )
    code = f"import sys; sys.modules[{package!r}] = None\n{run}"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    expected = f"the package {package} is not installed: pip install 'edge-albert[{extra}]'"
    assert done.stderr.strip() == f"edge_albert: error: {expected}"
    assert list(tmp_path.iterdir()) == []


def test_console_script_names_its_commands():
    done = command("fly", module="edge_albert.cli")
    assert done.returncode == 2
    assert "export" in done.stderr
    assert "export" in command("--help", module="edge_albert.cli").stdout


@pytest.mark.parametrize("name", ["export", "run", "calibrate"])
def test_help_has_a_worked_example(name):
    done = command("--help", module=f"edge_albert.{name}")
    assert done.returncode == 0
    assert "examples:" in done.stdout
