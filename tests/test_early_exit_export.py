"""Early exit from the export command to the answer: chosen, judged, reported, run; and held against PyTorch."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import tiny_checkpoint

import edge_albert
from calibration.exits import ExitModel, choose, inputs_of, leave, part_of, setting, split_rows, trials
from calibration.gate import Evaluation
from calibration.gate_tasks import Judged
from converters.convert import convert
from edge_albert.checkpoint import read_checkpoint
from edge_albert.early_exit import CRITERIA, Exits, exit_iterations, exit_outputs
from edge_albert.errors import BundleError, DataError, EdgeAlbertError
from edge_albert.export import main
from edge_albert.exporter import DEFAULT_MODEL
from edge_albert.run import main as run_main
from edge_albert.runtime.engine import open_engine
from edge_albert.runtime.session import make_feeds
from edge_albert.tasks import TASKS
from edge_albert.tokenizer import Encoding, load_tokenizer

SHARED = {"early_exit": {"heads": "shared"}}
WHO = ("the baker", "a small dog", "my neighbour", "nobody", "the old teacher", "a bird")
WHAT = ("sings", "found a coin in the river", "is late today", "bought seven apples", "left", "wins")
TEXTS = [f"{who} {what}" for who in WHO for what in WHAT]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint of five iterations with a shared exit head, and eval.tsv with its own answers as labels."""
    folder = tmp_path_factory.mktemp("exit-export")
    source = tiny_checkpoint(folder / "model", num_hidden_layers=5, extra=SHARED)
    read, tokenizer = read_checkpoint(source), load_tokenizer(source)
    answers = ExitModel(read.config, read.tensors, TASKS["text-classification"]).rows(
        [tokenizer.encode(text) for text in TEXTS]
    )
    labels = [read.config.labels[int(answer[-1].argmax())] for answer in answers]
    rows = "".join(f"{text}\t{label}\n" for text, label in zip(TEXTS, labels, strict=True))
    (folder / "eval.tsv").write_text("sentence\tlabel\n" + rows, encoding="utf-8")
    return source


def export(model: Path, output: Path, *words: str, precision: str = "--fp32") -> int:
    options = ["--no-measure", precision]
    return main(["--model", str(model), "--output", str(output), *options, *map(str, words)])


@pytest.fixture(scope="module")
def bundle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exit-bundle") / "bundle"
    words = ["--early-exit", "confidence", "--exit-threshold", "0.7", "--eval", str(model.parent / "eval.tsv")]
    assert export(model, out, *words) == 0
    return out


# -- running -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["onnx", "tflite"])
def test_answers_say_how_many_iterations_they_took(model: Path, bundle: Path, engine: str) -> None:
    read, tokenizer = read_checkpoint(model), load_tokenizer(model)
    rows = ExitModel(read.config, read.tensors, TASKS["text-classification"]).rows([tokenizer.encode(t) for t in TEXTS])
    runner = edge_albert.load(bundle, engine=engine, threads=1)
    for given, threshold, depth in (({}, 0.7, None), ({"exit_threshold": 0.5}, 0.5, None), ({"depth": 2}, 0.7, 2)):
        outputs, used = leave(rows, CRITERIA["confidence"], threshold, depth=depth)
        found = runner(TEXTS, **given)
        assert [one.iterations for one in found] == used.tolist()
        assert [one.label for one in found] == [read.config.labels[int(row.argmax())] for row in outputs]
    assert runner.top(TEXTS[0], k=2, exit_threshold="never")[1].iterations == 5
    with pytest.raises(EdgeAlbertError, match=r"exit_threshold 1\.5: the confidence criterion takes a probability"):
        runner(TEXTS[0], exit_threshold=1.5)
    runner.session.close()
    with edge_albert.load(bundle, engine=engine, threads=1, depth=1).session as session:
        assert {output.iterations for output in session.outputs([session.encode(TEXTS[0])])} == {1}
    with pytest.raises(EdgeAlbertError, match="depth 6: the model has 1 to 5 iterations"):
        edge_albert.load(bundle, engine=engine, depth=6)


def test_batches_and_windows(bundle: Path) -> None:
    alone = edge_albert.load(bundle, engine="onnx", threads=1)
    together = edge_albert.load(bundle, engine="onnx", threads=1, batch_size=6)
    for one, other in zip(alone(TEXTS), together(TEXTS), strict=True):
        assert (one.label, one.iterations) == (other.label, other.iterations)
        assert one.score == pytest.approx(other.score, abs=1e-5)
    long = " ".join(TEXTS)
    answer = alone(long, windows=True)
    assert answer.windows > 1
    with alone.session as session:
        used = [output.iterations for output in session.outputs(session.encode_windows(long))]
    assert answer.iterations == max(used)


def test_a_bundle_without_exits_says_so(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(model, tmp_path / "plain", "--format", "onnx") == 0
    assert edge_albert.load(tmp_path / "plain")(TEXTS[0]).iterations is None
    with pytest.raises(EdgeAlbertError, match="always runs every iteration: export a model trained for it"):
        edge_albert.load(tmp_path / "plain", depth=2)
    capsys.readouterr()
    assert run_main([str(tmp_path / "plain"), "--json", TEXTS[0]]) == 0
    assert "iterations" not in json.loads(capsys.readouterr().out)["answer"][0]


def test_the_run_command(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main([str(bundle), "--check"]) == 0
    assert run_main([str(bundle), "--json", "--exit-threshold", "never", "--depth", "3", TEXTS[0]]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["answer"][0]["iterations"] == 3
    assert run_main([str(bundle), "--depth", "1", TEXTS[0]]) == 0
    assert "(1 iteration)" in capsys.readouterr().out
    with pytest.raises(EdgeAlbertError, match="exit_threshold -1"):
        run_main([str(bundle), "--exit-threshold", "-1", TEXTS[0]])


def test_other_tasks(tmp_path: Path) -> None:
    changes = {"num_hidden_layers": 5, "extra": SHARED}
    for task, criterion, threshold in (("text-regression", "change", 0.3), ("token-classification", "patience", 1)):
        source = tiny_checkpoint(tmp_path / task, task, **changes)
        words = ["--early-exit", criterion, "--exit-threshold", str(threshold), "--format", "onnx"]
        assert export(source, tmp_path / f"{task}-bundle", *words) == 0
        answer = edge_albert.load(tmp_path / f"{task}-bundle", exit_threshold="never")(TEXTS[1])
        found = answer if isinstance(answer, list) else [answer]
        assert {one.iterations for one in found} == {5}


def test_a_damaged_manifest(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    manifest = json.loads((copy / "bundle.json").read_text())
    assert manifest["early_exit"] == {"criterion": "confidence", "threshold": 0.7, "iterations": 5, "labels": 3}
    for said in ({**manifest["early_exit"], "threshold": 7}, {"criterion": "mood"}, "soon"):
        (copy / "bundle.json").write_text(json.dumps({**manifest, "early_exit": said}))
        with pytest.raises(BundleError, match="early_exit is damaged"):
            edge_albert.load(copy)


# -- the export --------------------------------------------------------------------------------------------------------


def test_the_report(bundle: Path, model: Path) -> None:
    report = json.loads((bundle / "report.json").read_text())
    facts, run = report["early_exit"], report["formats"]["onnx"]["early_exit"]
    assert (facts["criterion"], facts["threshold"], facts["heads"], facts["choice"]) == (
        "confidence",
        0.7,
        "shared",
        None,
    )
    assert facts["by_depth"][-1] == 100, "the labels are the model's own"
    assert {one["criterion"] for one in facts["curve"]} == {"confidence", "entropy", "patience"}
    assert sum(run["histogram"]) == run["inputs"] == len(TEXTS)
    assert run["mean_iterations"] == pytest.approx(np.average(range(1, 6), weights=run["histogram"]))
    assert run["same_iteration"] == 1
    assert run["ms"]["p50"] <= run["ms"]["p90"] <= run["ms"]["p99"]
    assert run["first"][0]["iterations"] == min(one["iterations"] for one in run["first"] + run["last"])
    assert run["last"][0]["iterations"] == 1 + max(np.flatnonzero(run["histogram"]))
    assert run["last"][0]["text"] in TEXTS
    page = (bundle / "report.md").read_text()
    for words in (
        "## Early exit",
        "confidence of at least 0.7",
        "accuracy against mean iterations",
        "| depth 5 | 5.00 | 100.00 |",
    ):
        assert words in page


def test_the_page(bundle: Path) -> None:
    from edge_albert.reports.html.export_page import to_html

    page = to_html(json.loads((bundle / "report.json").read_text()))
    assert "Early exit" in page
    assert len(re.findall(r'aria-label="patience \d: [\d.]+ iterations, [\d.]+"', page)) == 4
    dots = re.findall(r'<i title="([^"]+)" style="left:([\d.]+)%;bottom:([\d.]+)%', page)
    facts = json.loads((bundle / "report.json").read_text())["early_exit"]
    assert len(dots) == len(facts["by_depth"]) + len(facts["curve"])
    places = {said.partition(":")[0]: (float(left), float(bottom)) for said, left, bottom in dots}
    assert places["depth 5"] == (100, 100), "all five iterations, where nothing is lost"
    assert places["depth 1"] == (20, pytest.approx(100 * _height(facts, facts["by_depth"][0]), abs=0.01))
    assert page.count('class="ring"') == 1


def _height(facts: dict, points: float) -> float:
    every = [*facts["by_depth"], *(one["points"] for one in facts["curve"])]
    return (points - min(every)) / (max(every) - min(every))


def test_auto_chooses_on_one_half_and_is_judged_on_the_other(model: Path, tmp_path: Path) -> None:
    words = ["--early-exit", "auto", "--eval", str(model.parent / "eval.tsv"), "--max-drop", "40", "--format", "onnx"]
    assert export(model, tmp_path / "auto", *words, precision="--int8") == 0
    report = json.loads((tmp_path / "auto" / "report.json").read_text())
    choice, verdict = report["early_exit"]["choice"], report["gate"]["formats"]["onnx"]
    assert sum(choice["rows"]) == len(TEXTS)
    assert verdict["rows"] == choice["rows"][1] == report["formats"]["onnx"]["early_exit"]["inputs"]
    assert choice["chosen"]["drop"] <= 20, "half of what is allowed is spent choosing"
    assert choice["chosen"]["mean_iterations"] < 5
    assert verdict["float_points"] == 100, "held against the float model at full depth"
    manifest = json.loads((tmp_path / "auto" / "bundle.json").read_text())
    assert manifest["early_exit"]["threshold"] == choice["chosen"]["threshold"]
    assert "--early-exit auto" in manifest["command"]
    again = tmp_path / "again"
    assert export(model, again, *words, precision="--int8") == 0
    assert (again / "model.onnx").read_bytes() == (tmp_path / "auto" / "model.onnx").read_bytes()


def test_heads_per_iteration_with_and_without_early_exit(tmp_path: Path) -> None:
    changes = {"num_hidden_layers": 4, "hidden_size": 512, "extra": {"early_exit": {"heads": "per-iteration"}}}
    source = tiny_checkpoint(tmp_path / "model", **changes)
    words = ["--early-exit", "confidence", "--exit-threshold", "0.6", "--format", "onnx"]
    assert export(source, tmp_path / "exits", *words) == 0
    assert export(source, tmp_path / "full", "--format", "onnx") == 0
    reports = [json.loads((tmp_path / name / "report.json").read_text()) for name in ("exits", "full")]
    more, full = (report["model"]["parameters"] for report in reports)
    assert more - full == 3 * (3 * 512 + 3)
    for report, heads in zip(reports, (4, 1), strict=True):
        copies = {
            name: n for name, n in report["formats"]["onnx"]["copies"].items() if name.startswith(("exits", "cl"))
        }
        assert list(copies.values()) == [1] * heads
    assert "early_exit" not in json.loads((tmp_path / "full" / "bundle.json").read_text())["config"]


def test_the_measurement_runs_every_iteration(model: Path, tmp_path: Path) -> None:
    """At the file's threshold of 0 all would leave after one iteration."""
    words = ["--early-exit", "confidence", "--exit-threshold", "0", "--format", "onnx"]
    assert export(model, tmp_path / "out", *words) == 0
    engine = open_engine(tmp_path / "out" / "model.onnx", threads=1)
    found: list[float] = []

    class Watched:
        version = engine.version

        def run(self, feeds):
            out = engine.run(feeds)
            found.extend(out["iterations"].tolist())
            return out

    probe = importlib.import_module("edge_albert.runtime.probe")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "open_engine", lambda *args, **kwargs: Watched())
        options = {"engine": None, "threads": 1, "runs": 1, "vocab_size": 80, "cache_dir": None, "plain": False}
        threshold = float(Exits("confidence", 0, 5, 3).feeds("never")["exit_threshold"])
        probe.measure(tmp_path / "out" / "model.onnx", lengths=(16,), exit_threshold=threshold, **options)
        assert set(found) == {5.0}
        found.clear()
        probe.measure(tmp_path / "out" / "model.onnx", lengths=(16,), exit_threshold=threshold, max_depth=2, **options)
    assert set(found) == {2.0}


def test_the_gate_refuses_what_leaving_early_loses(model: Path, tmp_path: Path) -> None:
    words = ["--early-exit", "confidence", "--exit-threshold", "0", "--eval", str(model.parent / "eval.tsv")]
    assert export(model, tmp_path / "out", *words, "--max-drop", "0.5", "--format", "onnx") == 3
    assert not (tmp_path / "out" / "bundle.json").exists()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["gate"]["holds"] is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["auto"], "--early-exit auto: needs labelled rows and what may be lost"),
        (["confidence"], "--early-exit confidence: needs its threshold"),
        (["confidence", "--exit-threshold", "1.2"], "--exit-threshold 1.2: the confidence criterion takes"),
        (
            ["entropy", "--exit-threshold", "-1"],
            "--exit-threshold -1: the entropy criterion takes nats from 0 to 1.098",
        ),
        (["patience", "--exit-threshold", "9"], "--exit-threshold 9: the patience criterion takes .* from 1 to 4"),
        (["change", "--exit-threshold", "1"], "--early-exit change: does not fit text-classification"),
        (["patience", "--exit-threshold", "1", "--unroll"], "an unrolled graph"),
    ],
)
def test_refused_options(model: Path, tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(EdgeAlbertError, match=message):
        export(model, tmp_path / "out", "--early-exit", *words)
    assert not (tmp_path / "out").exists()


def test_refused_models(tmp_path: Path) -> None:
    words = ["--early-exit", "confidence", "--exit-threshold", "0.9"]
    with pytest.raises(
        EdgeAlbertError, match=r"no answer after every iteration: train it with .*finetune … --early-exit"
    ):
        export(tiny_checkpoint(tmp_path / "plain"), tmp_path / "out", *words)
    with pytest.raises(EdgeAlbertError, match="question-answering cannot leave early: an answer is the best of all"):
        export(tiny_checkpoint(tmp_path / "qa", "question-answering"), tmp_path / "out", *words)
    with pytest.raises(EdgeAlbertError, match="--exit-threshold: belongs to a criterion"):
        export(tmp_path / "plain", tmp_path / "out", *words[2:])
    with pytest.raises(EdgeAlbertError, match="--int8-static"):
        export(tiny_checkpoint(tmp_path / "ok", extra=SHARED), tmp_path / "out", *words, precision="--int8-static")


# -- choosing ----------------------------------------------------------------------------------------------------------


def evaluation(count: int = 400) -> tuple[Evaluation, list[np.ndarray], np.ndarray]:
    """Answers after 4 iterations that get better and surer: right with 0.6, 0.8, 0.9, 1."""
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 2, count)
    answers = []
    for label in gold:
        sure = rng.uniform(0, 4, 4).cumsum()
        right = sorted(rng.random(4) < (0.6, 0.8, 0.9, 1.0))
        sign = np.where(right, 1, -0.3) * (2 * label - 1)
        answers.append(np.stack([-sure * sign, sure * sign], axis=1).astype(np.float32))
    encodings = [Encoding([2, 5 + i % 70, 7 + i // 70, 3], [0] * 4, [], [], []) for i in range(count)]
    judged = Judged(encodings, gold, lambda rows: np.array([row.argmax() for row in rows]), "0" * 64)
    measure = lambda gold, found: float((gold == found).mean())  # noqa: E731
    return Evaluation("rows.tsv", judged, "accuracy", measure), answers, gold


def test_halves_follow_the_rows_and_not_their_order() -> None:
    rows, _, gold = evaluation()
    first, second = split_rows(rows)
    assert (first ^ second).all()
    assert 150 < first.sum() < 250
    back = replace(rows, judged=replace(rows.judged, encodings=rows.judged.encodings[::-1], gold=gold[::-1]))
    np.testing.assert_array_equal(split_rows(back)[0][::-1], first)
    with pytest.raises(DataError, match="1 rows are too few"):
        split_rows(replace(rows, judged=replace(rows.judged, encodings=rows.judged.encodings[:1], gold=gold[:1])))


def test_windows_go_with_their_sentence() -> None:
    """Where a sentence takes several windows, they are in its half, and only they count for it."""
    rows, _, gold = evaluation(40)
    windows_of = [entry for entry in range(40) for _ in range(1 + entry % 3)]
    encodings = [Encoding([2, 5 + entry, 9 + i, 3], [0] * 4, [], [], []) for i, entry in enumerate(windows_of)]
    wide = replace(rows, judged=replace(rows.judged, encodings=encodings, windows_of=windows_of))
    first, second = split_rows(wide)
    assert len(first) == len(gold)
    for half in (first, second):
        inputs = inputs_of(wide, half)
        assert len(inputs) == len(encodings)
        assert {windows_of[i] for i in np.flatnonzero(inputs)} == set(np.flatnonzero(half))
    twins = [replace(encoding, input_ids=[2, 5, 9, 3]) for encoding in encodings]
    same = replace(wide, judged=replace(wide.judged, encodings=twins))
    with pytest.raises(DataError, match="40 rows are too few"):  # but for the number of windows all are the same
        split_rows(replace(same, judged=replace(same.judged, encodings=twins[:40], windows_of=range(40))))


def test_the_cheapest_setting_that_loses_little_enough() -> None:
    rows, answers, gold = evaluation()
    halves = split_rows(rows)
    config = read_checkpoint(DEFAULT_MODEL).config
    tried = trials(answers, ("confidence", "entropy", "patience"), config)
    choice = choose(tried, answers, rows, halves, 4.0)
    last = np.array([answer[-1].argmax() for answer in answers])
    full = [100 * float((last[half] == gold[half]).mean()) for half in halves]
    for trial in tried:
        drop = full[0] - 100 * float((np.array([o.argmax() for o in trial.outputs]) == gold)[halves[0]].mean())
        if trial.iterations[halves[0]].mean() < choice.chosen.mean_iterations:
            assert drop > 2.0, "what is cheaper loses too much"
    assert choice.chosen.drop <= 2.0
    same = next(t for t in tried if (t.criterion, t.threshold) == (choice.chosen.criterion, choice.chosen.threshold))
    assert choice.confirmed == setting(same, rows, halves[1], full[1])
    judged = part_of(rows, halves[1]).judged
    whole = rows.judged.predict(same.outputs)
    np.testing.assert_array_equal(judged.predict(same.outputs), whole[halves[1]])
    np.testing.assert_array_equal(judged.gold, gold[halves[1]])
    with pytest.raises(EdgeAlbertError, match=r"no criterion saves an iteration and loses at most 0\.00 points"):
        choose([t for t in tried if t.criterion == "confidence"][:1], answers, rows, halves, 0.0)


# -- PyTorch -----------------------------------------------------------------------------------------------------------


def messages(shared_data: Path, count: int) -> list[str]:
    lines = (shared_data / "sms_spam" / "SMSSpamCollection").read_text(encoding="utf-8").splitlines()
    return [line.split("\t", 1)[1] for line in lines][:count]


def hold_against_pytorch(tmp_path: Path, texts: list[str], criterion: str, threshold: float) -> None:
    torch = pytest.importorskip("torch")
    from edge_albert.model import build_model
    from edge_albert.training.finetuning.early_exit import all_logits
    from edge_albert.training.weights import load_arrays

    read, tokenizer = read_checkpoint(DEFAULT_MODEL), load_tokenizer(DEFAULT_MODEL)
    config = replace(read.config.with_exits("shared"), num_hidden_layers=6)
    net = build_model(config, "text-classification").eval()
    load_arrays(net, read.tensors)
    exits = Exits(criterion, threshold, 6, 2)
    engines = []
    for format in ("onnx", "tflite"):
        path = tmp_path / f"{criterion}.{format}"
        task = TASKS["text-classification"]
        path.write_bytes(convert(config, read.tensors, task, format=format, precision="fp32", exits=exits).content)
        engines.append(open_engine(path, threads=1))
    seen = set()
    for text in texts:
        feeds = make_feeds([tokenizer.encode(text, max_length=128)], config.pad_token_id)
        with torch.no_grad():
            logits = all_logits(net, {name: torch.tensor(array) for name, array in feeds.items()}).numpy()
        used = exit_iterations(logits, CRITERIA[criterion], threshold)
        seen.add(int(used[0]))
        for engine in engines:
            found = engine.run(feeds)
            assert found["iterations"][0] == used[0], (engine.name, text)
            np.testing.assert_allclose(found["logits"], exit_outputs(logits, used), atol=5e-5)
    assert len(seen) > 2


@pytest.mark.parametrize(("criterion", "threshold"), [("confidence", 0.95), ("entropy", 0.1)])
def test_some_real_messages_leave_where_pytorch_says(shared_data: Path, tmp_path: Path, criterion, threshold) -> None:
    hold_against_pytorch(tmp_path, messages(shared_data, 60), criterion, threshold)


@pytest.mark.slow
@pytest.mark.parametrize(("criterion", "threshold"), [("confidence", 0.95), ("entropy", 0.1), ("patience", 2)])
def test_a_thousand_real_messages(shared_data: Path, tmp_path: Path, criterion, threshold) -> None:
    hold_against_pytorch(tmp_path, messages(shared_data, 1000), criterion, threshold)
