"""The gate: its figures beside scipy's and scikit-learn's, and an export that it refuses, lets through, or raises."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from calibration_helpers import labelled_by, sentences, tiny_source, write_rows

import edge_albert
from calibration.gate import Evaluation, Verdict, judge, read_evaluation
from calibration.gate_tasks import Judged, task_metrics
from calibration.texts import TextFile
from edge_albert.bundle import open_bundle
from edge_albert.errors import DataError, EdgeAlbertError
from edge_albert.export import REFUSED, main
from edge_albert.exporting.source import Source
from edge_albert.tasks import TASKS
from edge_albert.training.metrics import glue

pytest.importorskip("onnx")
REPORTS = ["report.html", "report.json", "report.md"]


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> Source:
    return tiny_source(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture
def dev(given, tmp_path) -> Path:
    """60 rows, ten of which the float model gets wrong."""
    return labelled_by(given, tmp_path / "dev.tsv", wrong=10)


def export(given: Source, out: Path, *words: object) -> int:
    arguments = ["--model", given.checkpoint.folder, "--format", "onnx", "--no-measure", "--output", out, *words]
    return main([str(word) for word in arguments])


def outputs(*labels: int) -> list[np.ndarray]:
    return [np.eye(3)[label] for label in labels]


def evaluation(gold: np.ndarray, metric: str = "accuracy") -> Evaluation:
    measure = {"accuracy": glue.accuracy, "f1": glue.f1, "matthews": glue.matthews}[metric]
    judged = Judged([], gold, lambda rows: np.array([row.argmax() for row in rows]), "0" * 64)
    return Evaluation("dev.tsv", judged, metric, measure)


# -- figures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews"])
def test_the_interval_is_scipys_paired_bootstrap(metric):
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    gold = rng.integers(0, 2, 400)
    before = np.where(rng.random(400) < 0.9, gold, 1 - gold)
    after = np.where(rng.random(400) < 0.95, before, 1 - before)
    chosen = evaluation(gold, metric)
    verdict = judge(chosen, outputs(*before), outputs(*after), allowed=1.0)

    def drop(g, a, b):
        return 100 * (chosen.measure(g, a) - chosen.measure(g, b))

    expected = stats.bootstrap(
        (gold, before, after), drop, paired=True, vectorized=False, n_resamples=2000, method="percentile", rng=0
    ).confidence_interval
    np.testing.assert_allclose(verdict.interval, expected, atol=0.7)
    assert verdict.drop == pytest.approx(drop(gold, before, after))
    assert verdict.float_points == pytest.approx(100 * chosen.measure(gold, before))


def test_a_file_that_errs_on_the_same_rows_has_a_narrow_interval():
    """50 of 400 rows are wrong, for both: an unpaired comparison could not tell 0 from 4 points lost."""
    gold, before = np.zeros(400, int), np.r_[np.ones(50, int), np.zeros(350, int)]
    verdict = judge(evaluation(gold), outputs(*before), outputs(*before), allowed=0.0)
    assert verdict.interval == (0, 0)
    assert verdict.holds
    assert not verdict.uncertain


@pytest.mark.parametrize(
    ("drop", "interval", "allowed", "holds", "uncertain"),
    [
        (0.4, (-0.1, 0.9), 0.5, True, True),
        (0.4, (0.3, 0.5), 0.5, True, False),
        (0.6, (0.2, 0.9), 0.5, False, True),
        (0.6, (0.6, 0.9), 0.5, False, False),
        (9.0, (8.0, 10.0), None, True, False),
        (-2.0, (-3.0, -1.0), 0.0, True, False),
        (100 * (1 - 0.995), (0.0, 1.0), 0.5, True, True),
        (float("nan"), (0.0, 0.0), 0.5, False, False),
    ],
)
def test_verdicts(drop, interval, allowed, holds, uncertain):
    verdict = Verdict("accuracy", 200, 90.0, 90.0 - drop, drop, interval, allowed)
    assert (verdict.holds, verdict.uncertain) == (holds, uncertain)


def test_every_judged_task_has_the_usual_metric_first(given):
    config = given.checkpoint.config
    usual = {name: next(iter(task_metrics(task, config))) for name, task in TASKS.items()}
    assert usual == {
        "text-classification": "accuracy",
        "text-regression": "spearman",
        "token-classification": "f1",
        "question-answering": "f1",
        "multiple-choice": "accuracy",
        "sentence-embedding": "spearman",
    }


@pytest.mark.parametrize("task", ["text-regression", "sentence-embedding"])
def test_scores_are_correlated_with_the_task_s_own_numbers(tmp_path, task, capsys):
    """The float model's own numbers, jittered, as the right ones: its correlation is scipy's with them."""
    stats = pytest.importorskip("scipy.stats")
    given = tiny_source(tmp_path / "model", task)
    texts, pairs = sentences(40), sentences(40, seed=1)
    gold = np.random.default_rng(0).standard_normal(40).round(3)
    path = write_rows(
        tmp_path / "dev.tsv", "sentence1\tsentence2\tscore", list(zip(texts, pairs, gold.tolist(), strict=True))
    )
    assert export(given, tmp_path / "bundle", "--eval", path, "--task", task, "--fp32") == 0
    capsys.readouterr()
    verdict = json.loads((tmp_path / "bundle" / "report.json").read_text())["gate"]["formats"]["onnx"]
    model = edge_albert.load(tmp_path / "bundle")
    if task == "text-regression":
        predicted = [score.score for score in model(texts, pairs, truncate=True)]
    else:
        predicted = [
            float(model(a, truncate=True) @ model(b, truncate=True)) for a, b in zip(texts, pairs, strict=True)
        ]
    assert verdict["exported_points"] == pytest.approx(100 * stats.spearmanr(gold, predicted).statistic, abs=0.2)
    assert verdict["rows"] == 40


def answered(task: str, tmp_path: Path, rows: list[dict]) -> tuple[dict, Path]:
    """The verdict on a tiny model of the task, exported in fp32 and judged by these rows, and its bundle."""
    pytest.importorskip("torch")  # which finetune's readers import
    given = tiny_source(tmp_path / "model", task)
    path = tmp_path / "dev.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert export(given, tmp_path / "bundle", "--fp32", "--eval", path, "--max-drop", "0") == 0
    report = json.loads((tmp_path / "bundle" / "report.json").read_text())
    return report["gate"]["formats"]["onnx"], tmp_path / "bundle"


def test_answers_are_scored_as_the_runtime_gives_them(tmp_path):
    from edge_albert.training.metrics.squad import word_f1

    contexts = [context for context in sentences(12) if len(context) < 70]
    rows = [
        {"question": "who?", "context": context, "answers": {"text": [context[:9]], "answer_start": [0]}}
        for context in contexts
    ]
    verdict, bundle = answered("question-answering", tmp_path, rows)
    model = edge_albert.load(bundle)
    scores = [word_f1(row["context"][:9], model(row["question"], row["context"]).text) for row in rows]
    assert verdict["exported_points"] == pytest.approx(100 * np.mean(scores), abs=0.01)
    assert verdict["rows"] == len(contexts)


def test_choices_are_scored_as_the_runtime_makes_them(tmp_path):
    options = ["the blue door", "two letters from london", "a quiet phone"]
    rows = [{"context": text, "options": options, "label": i % 3} for i, text in enumerate(sentences(12))]
    verdict, bundle = answered("multiple-choice", tmp_path, rows)
    model = edge_albert.load(bundle)
    right = [model(row["context"], options).index == row["label"] for row in rows]
    assert verdict["exported_points"] == pytest.approx(100 * np.mean(right))


def test_entities_are_counted_as_seqeval_counts_them(tmp_path):
    """Names without a prefix are kinds; equal neighbours are one entity, here counted by hand."""
    words = [["the", "baker", "painted"], ["two", "letters"]]
    tags = [["label 0", "label 1", "label 1"], ["label 2", "label 2"]]
    rows = [{"tokens": w, "tags": t} for w, t in zip(words, tags, strict=True)]
    verdict, bundle = answered("token-classification", tmp_path, rows)
    right = there = said = 0
    with edge_albert.load(bundle).session as session:
        for row, gold in zip(words, tags, strict=True):
            encoding = session.encode(" ".join(row))
            labels = [session.bundle.labels[i] for i in session.infer([encoding])[0].argmax(axis=-1)]
            starts = np.cumsum([0, *(len(word) + 1 for word in row[:-1])])
            firsts = [[i for i, (a, b) in enumerate(encoding.offsets) if b > start][0] for start in starts]  # noqa: RUF015
            found, wanted = runs([labels[i] for i in firsts]), runs(gold)
            right, there, said = right + len(found & wanted), there + len(wanted), said + len(found)
    assert verdict["exported_points"] == pytest.approx(200 * right / (there + said))


def runs(tags: list[str]) -> set[tuple[int, int, str]]:
    """Where each stretch of equal tags begins and ends."""
    cuts = [i for i in range(len(tags)) if i == 0 or tags[i] != tags[i - 1]] + [len(tags)]
    return {(a, b, tags[a]) for a, b in itertools.pairwise(cuts)}


def test_a_tag_that_the_model_lacks_is_named(tmp_path):
    pytest.importorskip("torch")
    given = tiny_source(tmp_path / "model", "token-classification")
    path = tmp_path / "dev.jsonl"
    path.write_text(json.dumps({"tokens": ["the", "door"], "tags": ["O", "label 1"]}))
    with pytest.raises(DataError, match=r"dev.jsonl:1: the model has no tag 'O'"):
        read(given, path)


# -- an export that is judged ------------------------------------------------------------------------------------------


def test_an_export_that_holds_is_a_bundle_with_its_verdict(given, dev, tmp_path, capsys):
    out = tmp_path / "bundle"
    assert export(given, out, "--eval", dev, "--max-drop", "5") == 0
    assert "gate     model.onnx: accuracy 83.33 ►" in capsys.readouterr().out
    report = json.loads((out / "report.json").read_text())
    verdict = report["gate"]["formats"]["onnx"]
    assert verdict["float_points"] == pytest.approx(100 * 50 / 60)
    model = edge_albert.load(out)
    rows = [line.split("\t") for line in dev.read_text().splitlines()[1:]]
    right = [model(text).label == label for text, label in rows]
    assert verdict["exported_points"] == pytest.approx(100 * np.mean(right)), "the same file, through the runtime"
    assert "**The gate holds.**" in (out / "report.md").read_text()
    assert open_bundle(out)


@pytest.fixture
def hopeless(monkeypatch):
    """Every file loses 7 points, whatever its precision."""
    from edge_albert.exporting import model_file

    def lost(evaluation, reference, exported, allowed):
        return Verdict("accuracy", 60, 83.0, 76.0, 7.0, (3.0, 11.0), allowed)

    monkeypatch.setattr(model_file, "judge", lost)


def test_a_refused_export_leaves_the_reason_and_no_bundle(given, dev, tmp_path, capsys, hopeless):
    out = tmp_path / "bundle"
    assert export(given, out, "--eval", dev, "--max-drop", "0.5") == REFUSED == 3
    assert sorted(path.name for path in out.iterdir()) == REPORTS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "dev.tsv"]
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("edge_albert: refused  model.onnx accuracy 83.00 ► 76.00 on 60 rows, 7.00 points lost")
    assert "--fallback" in said
    report = json.loads((out / "report.json").read_text())
    assert report["gate"]["holds"] is False
    assert "there is no bundle" in (out / "report.md").read_text()
    with pytest.raises(EdgeAlbertError, match=r"bundle.json"):
        open_bundle(out)


def test_what_a_refused_export_left_may_be_replaced(given, dev, tmp_path, hopeless):
    out = tmp_path / "bundle"
    assert export(given, out, "--eval", dev, "--max-drop", "0.5") == REFUSED
    assert export(given, out) == 0
    assert open_bundle(out)
    with pytest.raises(EdgeAlbertError, match="--force"):
        export(given, out)


def test_with_force_a_refusal_replaces_the_old_bundle(given, dev, tmp_path, hopeless):
    """Who ships `bundle` after this command must not ship last week's."""
    out = tmp_path / "bundle"
    assert export(given, out) == 0
    assert export(given, out, "--force", "--eval", dev, "--max-drop", "0.5") == REFUSED
    assert sorted(path.name for path in out.iterdir()) == REPORTS


def test_a_refused_export_puts_nothing_into_an_app(given, dev, tmp_path, hopeless):
    words = ("--eval", dev, "--max-drop", "0.5", "--android", tmp_path / "assets")
    assert export(given, tmp_path / "bundle", *words) == REFUSED
    assert not (tmp_path / "assets").exists()


def test_the_reason_is_in_the_json_too(given, dev, tmp_path, capsys, hopeless):
    assert export(given, tmp_path / "bundle", "--eval", dev, "--max-drop", "0.5", "--json") == REFUSED
    assert json.loads(capsys.readouterr().out)["gate"]["formats"]["onnx"]["drop"] == 7.0


@pytest.fixture
def few(tmp_path) -> Path:
    """A small calibration set."""
    path = tmp_path / "few.txt"
    path.write_text("\n".join(sentences(16, seed=3)))
    return path


def test_fallback_raises_the_most_sensitive_until_it_holds(tmp_path, few):
    """The right numbers are the float model's own, so int4 must lose some of their order, and fp32 cannot lose any."""
    given = tiny_source(tmp_path / "model", "text-regression")
    dev = labelled_by(given, tmp_path / "dev.tsv")
    words = ("--int4", "--calibration-data", few, "--eval", dev, "--metric", "pearson", "--max-drop", "0.05")
    assert export(given, tmp_path / "refused", *words) == REFUSED
    assert export(given, tmp_path / "bundle", *words, "--fallback") == 0
    report = json.loads((tmp_path / "bundle" / "report.json").read_text())
    assert report["gate"]["refused"]
    assert report["gate"]["formats"]["onnx"]["drop"] <= 0.05
    raised = report["gate"]["overrides"]
    losses = {name: costs["int4"]["loss"] for name, costs in report["sensitivity"]["matrices"].items()}
    assert max(losses, key=losses.__getitem__) in raised
    assert "--fallback" in open_bundle(tmp_path / "bundle").manifest["command"]


def test_fallback_says_when_it_cannot(given, dev, few, tmp_path, capsys, hopeless):
    words = ("--int8", "--calibration-data", few, "--eval", dev, "--max-drop", "0.5", "--fallback")
    assert export(given, tmp_path / "bundle", *words) == REFUSED
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "retries with more bits did not help" in said
    gate = json.loads((tmp_path / "bundle" / "report.json").read_text())["gate"]
    assert set(gate["overrides"].values()) == {"fp32"}, "it gave up only when there was nothing left to raise"


def test_fallback_of_static_int8_keeps_matrices_in_float(given, dev, few, tmp_path, hopeless):
    words = ("--int8-static", "--calibration-data", few, "--eval", dev, "--max-drop", "0.5", "--fallback")
    assert export(given, tmp_path / "bundle", *words) == REFUSED
    gate = json.loads((tmp_path / "bundle" / "report.json").read_text())["gate"]
    assert len(gate["refused"]) >= 3


# -- bad input ---------------------------------------------------------------------------------------------------------


def read(given: Source, path: Path, metric: str | None = None) -> Evaluation:
    return read_evaluation(TextFile(path), metric, given.checkpoint.config, given.task, given.tokenizer)


def test_a_metric_of_another_task_is_refused(given, dev):
    with pytest.raises(EdgeAlbertError, match="--metric spearman: does not fit text-classification: choose one of acc"):
        read(given, dev, "spearman")


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (
            "text\tlabel",
            [("the blue door", "spam")],
            r"dev.tsv:2: the model has no label 'spam', only label 0, label 1",
        ),
        ("text\tlabel", [], "holds no usable row"),
        ("text\tstars", [("the blue door", "label 1")], "--label-column"),
    ],
)
def test_rows_of_another_task_are_refused(given, tmp_path, header, rows, message):
    with pytest.raises(DataError, match=message):
        read(given, write_rows(tmp_path / "dev.tsv", header, rows))


def test_numbers_are_needed_where_the_model_gives_numbers(tmp_path):
    given = tiny_source(tmp_path / "model", "text-regression")
    with pytest.raises(DataError, match="'good' is not a finite number"):
        read(given, write_rows(tmp_path / "dev.tsv", "text\tscore", [("the blue door", "good")]))


def test_an_embedding_is_judged_by_pairs(tmp_path):
    given = tiny_source(tmp_path / "model", "sentence-embedding")
    with pytest.raises(EdgeAlbertError, match="--pair-column"):
        read(given, write_rows(tmp_path / "dev.tsv", "text\tscore", [("the blue door", 1.0)]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--max-drop", "0.5"), "name them with --eval"),
        (("--metric", "f1"), "name them with --eval"),
        (("--eval", "dev.tsv", "--fallback"), "say it with --max-drop"),
        (("--eval", "absent.tsv", "--max-drop", "1"), "absent.tsv: cannot be read"),
        (("--int8", "--calibration", "c.json"), "uses neither ranges nor sensitivities"),
        (("--int8", "--calibration-data", "c.txt"), "needs no texts"),
        (("--int8", "--ranges", "mse"), "--int8-static"),
        (("--int8-static", "--calibration", "absent.json"), "absent.json: cannot be read"),
        (("--int4", "--calibration-data", "absent.txt"), "absent.txt: cannot be read"),
        (("--int4", "--tflite-compat"), "leave one of the two out"),
        (("--mixed", "20000"), "the smallest file this model can be is"),
    ],
)
def test_options_that_mean_nothing_are_refused(given, dev, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EdgeAlbertError, match=message):
        export(given, tmp_path / "bundle", *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dev.tsv"]


@pytest.mark.parametrize(
    "words",
    [
        ("--max-drop", "-1"),
        ("--max-drop", "nan"),
        ("--mixed", "-5"),
        ("--max-loss", "101"),
        ("--mixed", "9", "--int8"),
        ("--block-size", "48"),
    ],
)
def test_numbers_out_of_range_are_usage_errors(words, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "edge_albert.export", *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert words[0] in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_the_command_ends_with_status_3(tmp_path, few):
    given = tiny_source(tmp_path / "model", "text-regression")
    dev = labelled_by(given, tmp_path / "dev.tsv")
    words = ["--model", given.checkpoint.folder, "--int4", "--calibration-data", few, "--format", "onnx"]
    words += ["--eval", dev, "--max-drop", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "edge_albert.cli", "export", *map(str, words)],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("edge_albert: refused")
    assert sorted(path.name for path in (tmp_path / "bundle").iterdir()) == REPORTS


# -- the project's own model -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "allowed"), [("int8", 0.3), ("int8-static", 0.5), ("int4", 1.0)])
def test_the_default_model_loses_little(shared_data, tmp_path, precision, allowed):
    """The aims of docs/calibration.md, on the test messages that its table has; both engines must hold."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
    pytest.importorskip("torch")  # which the split's module imports
    from train_default import split_messages

    rows = split_messages(shared_data / "sms_spam" / "SMSSpamCollection")["test"]
    path = write_rows(tmp_path / "test.tsv", "label\ttext", rows)
    words = [f"--{precision}", "--eval", path, "--metric", "f1", "--max-drop", allowed, "--no-measure"]
    assert main([str(word) for word in [*words, "--output", tmp_path / "bundle"]]) == 0
