"""Speed: that files of the same shapes are compared, on the same engine. Times themselves are not asserted."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from edge_albert.analysis import speed
from edge_albert.config import count_macs, count_parameters, preset
from edge_albert.errors import ConfigError


@pytest.fixture(scope="module")
def record() -> dict:
    plan = replace(speed.QUICK, lengths=(16,), rounds=1, runs=1, precisions=("fp32",))
    return speed.measure(plan, "python -m edge_albert.analyze speed")


def test_rows_differ_in_the_shape_alone() -> None:
    base = preset("albert-base-v2")
    made = {name: row.shape(base) for name, row in speed.ROWS.items()}
    unshared, albert, half, quarter, narrow, *leaving = made.values()
    bert = preset("bert-base-shape")  # but for its activation function, nothing shared and E = H
    assert (
        replace(unshared, hidden_act=bert.hidden_act, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1) == bert
    )
    assert albert == base
    assert (half.num_hidden_layers, quarter.num_hidden_layers) == (6, 3)
    assert (narrow.hidden_size, narrow.num_attention_heads, narrow.head_size) == (384, 6, 64)
    assert leaving == [base.with_exits("shared")] * 2
    assert [row.max_depth(base) for row in speed.ROWS.values()] == [None] * 6 + [3]
    macs = {name: count_macs(config, 128) for name, config in made.items()}
    assert macs["nothing shared, E = H"] == pytest.approx(macs[speed.ALBERT], rel=0.01)
    assert macs["half the iterations"] == pytest.approx(macs[speed.ALBERT] / 2, rel=0.01)


@pytest.mark.parametrize(("base", "precisions"), [("albert-xlarge-v2", ("fp32",)), ("albert-xxlarge-v1", ("int8",))])
def test_files_that_no_format_holds_are_refused_first(base: str, precisions: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=rf"{base}: with nothing shared, E = H it is \d\.\d GB in "):
        speed.measure(replace(speed.Plan(), base=base, precisions=precisions), "")


def test_files_are_as_large_as_their_parameters(record: dict) -> None:
    base = preset("tiny")
    for row in record["rows"]:
        shape = speed.ROWS[row["row"]].shape(base)
        parameters = count_parameters(shape, head_outputs=2).total
        assert row["parameters"] == parameters
        assert row["file_bytes"] == pytest.approx(4 * parameters, rel=0.02), row["row"]


def test_work_is_what_is_done_before_leaving(record: dict) -> None:
    done = {row["row"]: (row["iterations"], row["macs_at_128"]) for row in record["rows"]}
    assert done["leaves after a quarter"] == done["a quarter of the iterations"]
    assert done["may leave early, none does"] == done[speed.ALBERT]


def test_every_row_is_measured_by_every_engine(record: dict) -> None:
    formats = {row["format"] for row in record["rows"]}
    assert len(record["rows"]) == len(speed.ROWS) * len(formats)
    for row in record["rows"]:
        assert [runs[0]["length"] for runs in row["measured"]] == [16]
        assert row["times"]["16"]["cpu_ms"] == row["measured"][0][0]["cpu_ms"]["p50"] > 0
    for format in formats:
        unshared, albert = [row for row in record["rows"] if row["format"] == format][:2]
        assert albert["times"]["16"]["ratio"] == 1
        assert unshared["anon_bytes"] > albert["anon_bytes"]


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that is twice as slow in the second round changes no ratio."""

    def probed(milliseconds: float) -> dict:
        return {"runs": [{"cpu_ms": {"p50": milliseconds}}], "anon_bytes": 7, "file_bytes": 9, "engine": "engine 1"}

    albert, half = (speed.ALBERT, "onnx", "int8"), ("half", "onnx", "int8")
    rounds = [{albert: probed(10), half: probed(5)}, {albert: probed(20), half: probed(10)}]
    found = speed._summaries(rounds, [16])
    assert found[half]["times"]["16"] == {"cpu_ms": 7.5, "ratio": 0.5, "lowest_ratio": 0.5, "highest_ratio": 0.5}
    assert (found[half]["anon_bytes"], found[half]["file_bytes"], len(found[half]["measured"])) == (7, 9, 2)


def test_table_and_picture_have_every_row(record: dict) -> None:
    pytest.importorskip("matplotlib")
    table, picture = speed.to_markdown(record), speed.draw(record)["speed"]
    for name in speed.ROWS:
        assert f"| {name} |" in table
        assert picture.count(f">{name}<") == 3
    assert "times the CPU time" in table.splitlines()[0]


def test_random_weights_are_the_seeds_alone() -> None:
    config = preset("tiny")
    one, same, other = (speed.random_tensors(config, seed) for seed in (0, 0, 1))
    word = "albert.embeddings.word_embeddings.weight"
    assert (one[word] == same[word]).all()
    assert (one[word] != other[word]).any()
    assert (one["albert.embeddings.LayerNorm.weight"] == 1).all()
    assert (one["albert.embeddings.LayerNorm.bias"] == 0).all()


def test_shape_that_shares_nothing() -> None:
    with pytest.raises(ConfigError, match="bert-base-shape: shares nothing: name an ALBERT"):
        speed.measure(speed.Plan(base="bert-base-shape"), "")
