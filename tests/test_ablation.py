"""Ablations: a grid of tiny models is trained, stopped, gone on with, refused, scored and reported."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pretrain_helpers import losses, make_shards, weights, write_corpus  # noqa: E402

from edge_albert.analysis import ablation, ablation_report, recipes  # noqa: E402
from edge_albert.analysis.ablation import Place, run, score  # noqa: E402
from edge_albert.analysis.record import checked_out_commit  # noqa: E402
from edge_albert.analyze import main  # noqa: E402
from edge_albert.checkpoint import read_checkpoint  # noqa: E402
from edge_albert.config import count_parameters, preset  # noqa: E402
from edge_albert.errors import DataError, EdgeAlbertError  # noqa: E402
from edge_albert.training.pretraining.corpus import Corpus  # noqa: E402
from edge_albert.training.pretraining.loop import Pretrainer  # noqa: E402
from edge_albert.training.pretraining.run import Plan  # noqa: E402
from edge_albert.training.pretraining.shards import write_shards  # noqa: E402

SHAPE = replace(
    recipes.FULL.shape, embedding_size=16, hidden_size=32, num_attention_heads=2, intermediate_size=64,
    num_hidden_layers=3, hidden_dropout_prob=0.1,
)  # fmt: skip
TINY = recipes.AblationRecipe(
    SHAPE,
    replace(recipes.QUICK.pretrain, steps=5, max_length=48, checkpoint_every=2, log_every=1),
    seeds=(1,),
    passes=1,
)
FEW = {name: recipes.CELLS[name] for name in (recipes.BASE, "share-attention", "share-ffn")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_shards(tmp_path_factory.mktemp("ablation"))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "CELLS", FEW)


def place(made: tuple[Path, Path], work: Path) -> Place:
    return Place(work, made[0], made[1])


@pytest.fixture(scope="module")
def whole(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A small grid that nobody stopped: its folder and its record."""
    work = tmp_path_factory.mktemp("whole") / "work"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablation, "CELLS", FEW)
        return work, run(TINY, place(made, work), "")


# -- stopping and going on ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(("cell", "step"), [("share-attention", 3), ("share-ffn", 1)])
def test_stopped_grid_goes_on_with_the_same_result(
    cell: str, step: int, whole: tuple[Path, dict[str, Any]], made: tuple[Path, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """SIGTERM in the middle of a cell with half-shared layers; every bit of weights, losses and scores is the same."""
    work = tmp_path / "work"
    train_step = Pretrainer._train_step

    def interrupted(self: Pretrainer, *args: Any) -> Any:
        figures = train_step(self, *args)
        if self.folder.parent.name == cell and self.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return figures

    with monkeypatch.context() as patch:
        patch.setattr(Pretrainer, "_train_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(TINY, place(made, work), "")
    assert not (work / cell / "seed-1" / "score.json").exists()
    assert (work / recipes.BASE / "seed-1" / "score.json").exists()
    record = run(TINY, place(made, work), "")
    for name in FEW:
        one, other = work / name / "seed-1", whole[0] / name / "seed-1"
        assert losses(one) == losses(other)
        assert weights(one) == weights(other)
        assert not (one / "checkpoints").exists()
        for metric in ("mlm_loss", "sop_loss", "nsp_loss", "tokens_seen"):
            expected = whole[1]["cells"][name]["seeds"]["1"][metric]
            assert record["cells"][name]["seeds"]["1"][metric] == expected


@pytest.mark.usefixtures("few")
def test_finished_cells_are_skipped(
    whole: tuple[Path, dict[str, Any]], made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: Any, **options: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(ablation, "pretrain", never)
    assert run(TINY, place(made, whole[0]), "")["cells"] == whole[1]["cells"]


@pytest.mark.usefixtures("few")
def test_a_lost_score_is_made_again_without_training(
    whole: tuple[Path, dict[str, Any]], made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole[0] / recipes.BASE / "seed-1" / "score.json").unlink()
    monkeypatch.setattr(ablation, "pretrain", None)
    assert run(TINY, place(made, whole[0]), "")["cells"] == whole[1]["cells"]


@pytest.mark.parametrize(("cell", "tied"), [("share-attention", "attention"), ("share-ffn", "ffn")])
def test_the_shared_half_is_equal_in_every_layer_and_the_other_is_not(
    cell: str, tied: str, whole: tuple[Path, dict[str, Any]]
) -> None:
    checkpoint = read_checkpoint(whole[0] / cell / "seed-1" / "model")
    assert checkpoint.config.tied_across_groups == tied
    first = "albert.encoder.albert_layer_groups.0.albert_layers.0."
    names = [name.removeprefix(first) for name in checkpoint.tensors if name.startswith(first) and "weight" in name]
    assert len(names) == 8
    for name in names:
        layers = [checkpoint.tensors[first.replace("groups.0", f"groups.{group}") + name] for group in range(3)]
        shared = (tied == "attention") == name.startswith("attention.")
        assert np.array_equal(layers[0], layers[1]) == np.array_equal(layers[0], layers[2]) == shared, name


@pytest.mark.usefixtures("few")
def test_seeds_trained_by_processes_of_their_own_make_one_grid(
    whole: tuple[Path, dict[str, Any]], made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, at = replace(TINY, seeds=(1, 2)), place(made, tmp_path / "work")
    ablation.train(both, at, [2])
    assert not (at.work / recipes.BASE / "seed-1").exists()
    ablation.train(both, at, [1])
    monkeypatch.setattr(ablation, "pretrain", None)  # nothing is left to train
    record = run(both, at, "")
    for name in FEW:
        first, second = (record["cells"][name]["seeds"][seed]["mlm_loss"] for seed in ("1", "2"))
        assert first == whole[1]["cells"][name]["seeds"]["1"]["mlm_loss"] != second


@pytest.mark.usefixtures("few")
def test_a_seed_alone_reports_nothing(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recipes, "FULL", replace(TINY, pretrain=replace(TINY.pretrain, steps=1)))
    words = ["ablate", "--tokenizer", str(made[0]), "--shards", str(made[1]), "--work", str(tmp_path / "work")]
    with pytest.raises(EdgeAlbertError, match="the same command without --seed"):
        main([*words, "--seed", "1", "--output", str(tmp_path / "out")])
    with pytest.raises(EdgeAlbertError, match="seed 3 is not in the recipe, which has 1"):
        main([*words, "--seed", "3"])
    assert not (tmp_path / "work").exists()
    assert main([*words, "--seed", "1"]) == 0
    assert capsys.readouterr().out == ""
    assert len(list((tmp_path / "work").rglob("score.json"))) == len(FEW)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (replace(TINY, pretrain=replace(TINY.pretrain, steps=6)), "pretrain.steps is 5 there and 6 here"),
        (replace(TINY, shape=replace(SHAPE, hidden_size=64)), "shape.hidden_size is 32 there and 64 here"),
        (replace(TINY, seeds=(1, 2)), r"seeds is \[1\] there and \[1, 2\] here"),
        (replace(TINY, passes=3), "passes is 1 there and 3 here"),
    ],
)
def test_folder_of_another_recipe_is_refused_by_field(
    changed: recipes.AblationRecipe, message: str, whole: tuple[Path, dict[str, Any]], made: tuple[Path, Path]
) -> None:
    with pytest.raises(EdgeAlbertError, match=message):
        run(changed, place(made, whole[0]), "")


@pytest.mark.usefixtures("few")
def test_folder_with_other_data_is_refused(
    whole: tuple[Path, dict[str, Any]], made: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(EdgeAlbertError, match=r"shards is \".*/shards\" there and \".*/others\" here"):
        run(TINY, Place(whole[0], made[0], tmp_path / "others", [write_corpus(tmp_path / "corpus.txt")]), "")
    write_corpus(tmp_path / "corpus.txt", documents=9)
    with pytest.raises(DataError, match="made of another corpus"):
        run(TINY, replace(place(made, whole[0]), corpus=[tmp_path / "corpus.txt"]), "")
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(made[0], tokenizer)
    rules = {"do_lower_case": False, "keep_accents": True}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(rules))
    with pytest.raises(EdgeAlbertError, match=r"vocabulary is .* there and .* here"):
        run(TINY, Place(whole[0], tokenizer, made[1]), "")


def test_folder_with_other_cells_is_refused(whole: tuple[Path, dict[str, Any]], made: tuple[Path, Path]) -> None:
    with pytest.raises(EdgeAlbertError, match=r"cells\.share-none is null there and .*: name another --work"):
        run(TINY, place(made, whole[0]), "")


@pytest.mark.usefixtures("few")
def test_other_folders_are_refused(whole: tuple[Path, dict[str, Any]], made: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(EdgeAlbertError, match="holds something else than an ablation"):
        run(TINY, place(made, tmp_path), "")
    work = tmp_path / "work"
    shutil.copytree(whole[0], work)
    (work / "ablation.json").write_text("{")
    with pytest.raises(EdgeAlbertError, match=r"ablation\.json: damaged"):
        run(TINY, place(made, work), "")
    shutil.copy(whole[0] / "ablation.json", work)
    base = work / recipes.BASE / "seed-1"
    (base / "score.json").unlink()
    plan = Plan.read(base)
    replace(plan, recipe=replace(plan.recipe, learning_rate=0.5)).write(base)
    with pytest.raises(EdgeAlbertError, match=r"run\.json: from another recipe: learning_rate is 0\.5 there"):
        run(TINY, place(made, work), "")


def test_scores_say_their_commit_and_may_be_of_few_examples(
    whole: tuple[Path, dict[str, Any]], made: tuple[Path, Path]
) -> None:
    folder = place(made, whole[0]).run_folder(recipes.BASE, 1)
    kept = json.loads((folder / "score.json").read_text())
    assert kept["commit"] == checked_out_commit()
    assert kept["examples"] > 3
    assert score(folder, 1, most=3)["examples"] == 3
    record = {"cells": {"a": {"seeds": {"1": {"commit": "abc"}, "2": {}}}}}
    said = ablation_report._commits(record)
    assert said == "; trained at commit abc; 1 of 2 models do not say at which commit they were trained"


@pytest.mark.usefixtures("few")
def test_a_neighbour_that_begins_too_is_no_stranger(made: tuple[Path, Path], tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / ".edge-albert-0123456789abcdef.tmp").mkdir(parents=True)
    assert run(TINY, place(made, work), "")["cells"].keys() == FEW.keys()


def test_neither_corpus_nor_shards(made: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(EdgeAlbertError, match="no shards there, and no corpus to make them of"):
        main(["ablate", "--tokenizer", str(made[0]), "--work", str(tmp_path / "work")])
    assert not (tmp_path / "work").exists()


@pytest.mark.usefixtures("few")
def test_corpus_too_small_to_hold_anything_out(made: tuple[Path, Path], tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    write_shards(Corpus([write_corpus(tmp_path / "corpus.txt", documents=100)]), made[0], shards)
    with pytest.raises(DataError, match="100 documents are too few to hold some out"):
        run(TINY, Place(tmp_path / "work", made[0], shards), "")
    assert not list((tmp_path / "work").rglob("log.jsonl"))  # said before anything was trained


# -- scores ------------------------------------------------------------------------------------------------------------


def test_score_is_what_the_training_loop_evaluates(whole: tuple[Path, dict[str, Any]]) -> None:
    """Fewer than 256 held-out examples and one pass: the loop's last evaluation saw the same; whose loss
    tests/test_pretrain.py holds to transformers'."""
    folder = whole[0] / recipes.BASE / "seed-1"
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    last = [record for record in records if record["event"] == "evaluation"][-1]
    found = score(folder, passes=1)
    assert found["mlm_loss"] == pytest.approx(last["mlm_loss"], rel=1e-5)
    assert found["sop_loss"] == pytest.approx(last["order_loss"], rel=1e-5)
    assert found["sop_accuracy"] == last["order_accuracy"]
    assert score(folder, passes=3)["mlm_loss"] != found["mlm_loss"]  # other masks


def _cells(**accuracies: Sequence[float]) -> dict[str, Any]:
    return {
        name.replace("_", "-"): {"seeds": {str(i): {"m": v} for i, v in enumerate(a)}} for name, a in accuracies.items()
    }


@pytest.mark.parametrize(
    ("winner", "loser", "answer"),
    [
        ((0.5, 0.6), (0.3, 0.4), "holds: 55.0 (50.0–60.0) against 35.0 (30.0–40.0)"),
        ((0.3,), (0.4,), "does not hold: 30.0 against 40.0"),
        ((0.3, 0.5), (0.4, 0.45), "within the spread of the seeds: 40.0 (30.0–50.0) against 42.5 (40.0–45.0)"),
    ],
)
def test_a_finding_holds_only_beyond_the_spread(winner: Sequence[float], loser: Sequence[float], answer: str) -> None:
    assert ablation_report.ahead("m", "one", "two")(_cells(one=winner, two=loser)) == answer


def test_near_chance() -> None:
    assert ablation_report.near_chance("m", "one")(_cells(one=(0.51, 0.53))) == "holds: 52.0 (51.0–53.0)"
    assert ablation_report.near_chance("m", "one")(_cells(one=(0.6,))) == "does not hold: 60.0"


@pytest.mark.parametrize(
    ("sop", "answer"),
    [((0.7, 0.8), "holds"), ((0.56, 0.62), "within the spread of the seeds"), ((0.51, 0.5), "does not hold")],
)
def test_each_order_asked_of_the_other_model(sop: Sequence[float], answer: str) -> None:
    cells = {
        "base": {"seeds": {str(i): {"nsp_accuracy": v} for i, v in enumerate(sop)}},
        "nsp": {"seeds": {str(i): {"sop_accuracy": v} for i, v in enumerate((0.57, 0.58))}},
    }
    assert ablation_report._crossed(cells).partition(":")[0] == answer


# -- the recipes -------------------------------------------------------------------------------------------------------


def test_cells_are_the_papers() -> None:
    """Table 4's parameters in millions, by the recipes' own way of sharing; and every cell is in a table."""
    base = replace(recipes.FULL, shape=preset("albert-base-v2"))
    millions = {"base": 12, "share-ffn": 38, "share-attention": 64, "share-none": 89}
    for name, expected in millions.items():
        config = base.config_of(recipes.CELLS[name])
        assert abs(count_parameters(config).total / 1e6 - expected) < 1
    assert base.config_of(recipes.CELLS["embedding-hidden"]).embedding_size == 768
    assert {cell for table in recipes.TABLES.values() for cell in table.rows.values()} == set(recipes.CELLS)
    iterations = [
        base.config_of(recipes.CELLS[c]).num_hidden_layers for c in recipes.TABLES["iterations"].rows.values()
    ]
    assert iterations == [1, 2, base.shape.num_hidden_layers, 8]


def test_the_whole_grid_is_within_its_budget() -> None:
    """About four CPU hours, as the estimate says before it begins."""
    said = recipes.FULL.estimate(vocab_size=8000)
    assert float(said.split("about ")[1].split(" CPU hours")[0]) <= 4.5


def test_quick_grid_from_text_to_tables(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    corpus, work, out = write_corpus(tmp_path / "corpus.txt"), tmp_path / "work", tmp_path / "out"
    words = ["ablate", str(corpus), "--tokenizer", str(made[0]), "--work", str(work), "--output", str(out), "--quick"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "12 models × 1 seed, 2 steps of 8 × 32 tokens each" in printed.err
    for table in recipes.TABLES.values():
        assert f"(the paper's {table.paper})" in printed.out
        for label in table.rows:
            assert f"| {label} |" in printed.out
    record = json.loads((out / "ablate.json").read_text())
    assert set(record["cells"]) == set(recipes.CELLS)
    assert record["recipe"]["pretrain.steps"] == 2
    assert "<svg" in (out / "ablate.svg").read_text()
