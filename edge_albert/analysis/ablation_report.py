"""The ablations' tables, their picture, and what they say of the paper's findings, from the record alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from edge_albert.analysis.picture import Panel, dots, draw_svg
from edge_albert.analysis.recipes import BASE, TABLES
from edge_albert.analysis.record import Part, Record
from edge_albert.reports.tables import markdown_table

CHANCE = 0.05  # an accuracy this near to one half is called chance

Cells = Mapping[str, Any]


# -- what the paper found, and whether it holds here -------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """One finding of the paper, where and in what figures, and how the cells answer: "holds", "does not hold", or why
    nobody can tell."""

    said: str
    paper: str
    answer: Callable[[Cells], str]


def values_of(cells: Cells, cell: str, metric: str) -> list[float]:
    """The metric of every seed."""
    return [scores[metric] for scores in cells[cell]["seeds"].values()]


def ahead(metric: str, winner: str, loser: str) -> Callable[[Cells], str]:
    """Does `winner` have the higher metric with its worst seed than `loser` with its best?"""

    def answer(cells: Cells) -> str:
        return _compared(values_of(cells, winner, metric), values_of(cells, loser, metric))

    return answer


def _compared(high: list[float], low: list[float]) -> str:
    said = f"{_percent(high)} against {_percent(low)}"
    if min(high) > max(low):
        return f"holds: {said}"
    if max(high) < min(low):
        return f"does not hold: {said}"
    return f"within the spread of the seeds: {said}"


def near_chance(metric: str, cell: str) -> Callable[[Cells], str]:
    """Is the mean within CHANCE of one half?"""

    def answer(cells: Cells) -> str:
        values = values_of(cells, cell, metric)
        return f"{'holds' if abs(fmean(values) - 0.5) < CHANCE else 'does not hold'}: {_percent(values)}"

    return answer


def _crossed(cells: Cells) -> str:
    sop, nsp = values_of(cells, BASE, "nsp_accuracy"), values_of(cells, "nsp", "sop_accuracy")
    if fmean(sop) < 0.5 + CHANCE:
        return f"does not hold: {_percent(sop)} against {_percent(nsp)}"
    return _compared(sop, nsp)


FINDINGS = (
    Finding(
        "Sharing everything costs accuracy",
        "Table 4: 82.3 ► 79.8 (E = 768), 81.6 ► 80.1 (E = 128)",
        ahead("mlm_accuracy", "share-none", BASE),
    ),
    Finding(
        "Sharing the feed-forward costs more than sharing attention",
        "Table 4: 80.2 against 81.7 (E = 128)",
        ahead("mlm_accuracy", "share-attention", "share-ffn"),
    ),
    Finding(
        "With all shared, E = H is not the best",
        "Table 3: E = 128, 80.1; E = H = 768, 79.8",
        ahead("mlm_accuracy", BASE, "embedding-hidden"),
    ),
    Finding("A model trained on NSP is near chance on SOP", "Table 5: 52.0", near_chance("sop_accuracy", "nsp")),
    Finding("A model trained on SOP does NSP, and better than an NSP model does SOP", "Table 5: 78.9, 52.0", _crossed),
    Finding(
        "Masked words are best learnt alone",
        "Table 5: 54.9 alone, 54.5 with NSP, 54.0 with SOP",
        ahead("mlm_accuracy", "no-order", BASE),
    ),
    Finding(
        "More iterations of one layer are better: 8 beat 1 on masked words",
        "Table 11: 1, 52.9; 6, 77.2; 24, 82.1",
        ahead("mlm_accuracy", "iterations-8", "iterations-1"),
    ),
    Finding(
        "More iterations of one layer are better: 4 beat 1 on sentence order",
        "Table 11, as above",
        ahead("sop_accuracy", BASE, "iterations-1"),
    ),
)


def _percent(values: list[float]) -> str:
    """Mean over the seeds, and lowest and highest where there are several, in per cent."""
    shown = f"{100 * fmean(values):.1f}"
    return shown if len(values) == 1 else f"{shown} ({100 * min(values):.1f}–{100 * max(values):.1f})"


# -- tables and picture ------------------------------------------------------------------------------------------------


def to_markdown(record: Record) -> str:
    """How it was trained, a table for each question, and the findings."""
    out = [_how(record)]
    for table in TABLES.values():
        rows = [_row(label, record["cells"][cell]) for label, cell in table.rows.items()]
        header = (
            table.title,
            "parameters",
            "work",
            "masked words, loss",
            "masked words, %",
            "order (SOP), %",
            "next (NSP), %",
        )
        out.append(f"{table.title} (the paper's {table.paper}):\n\n{markdown_table(header, rows)}")
    findings = [(f.said, f.paper, f.answer(record["cells"])) for f in FINDINGS]
    out.append(
        "The paper's findings at this size, in per cent. The paper's figures are averages over downstream tasks, but "
        "for Table 5, which is of the pre-training tasks; here masked words, or the order named:\n\n"
        + markdown_table(("finding", "paper", "here"), findings)
    )
    return "\n\n".join(out)


def _how(record: Record) -> str:
    recipe, data = record["recipe"], record["data"]
    seen = fmean(scores["tokens_seen"] for scores in record["cells"][BASE]["seeds"].values())
    hours = sum(s["cpu_seconds"] for cell in record["cells"].values() for s in cell["seeds"].values()) / 3600
    examples = next(iter(record["cells"][BASE]["seeds"].values()))["examples"]
    return (
        f"H = {recipe['shape.hidden_size']}, {recipe['shape.num_hidden_layers']} iterations, E = "
        f"{recipe['shape.embedding_size']}, {record['vocab_size']} words; {recipe['pretrain.steps']} steps of "
        f"{recipe['pretrain.batch_size']} × {recipe['pretrain.max_length']} tokens, {recipe['pretrain.optimizer']} at "
        f"{recipe['pretrain.learning_rate']:g}, {recipe['pretrain.mask_share']:.0%} of the words masked; "
        f"{seen / 1e6:.1f} M tokens from a corpus of {data['tokens'] / 1e6:.1f} M; seeds "
        f"{', '.join(map(str, recipe['seeds']))}; {hours:.1f} CPU hours in all{_commits(record)}. Scores are "
        f"of {examples} held-out examples, each drawn {recipe['passes']} times: the mean over the seeds, in brackets "
        "the lowest and the highest. Masked words are scored in the form that the model was trained on; chance is 50 % "
        "for both orders, and the order head of the model without such an objective was never trained. Work is the "
        "multiply-adds of training, the base being 1."
    )


def _commits(record: Record) -> str:
    """At which commits the models were trained; the record's own is that of the report."""
    said = [scores.get("commit") for cell in record["cells"].values() for scores in cell["seeds"].values()]
    known = sorted({commit for commit in said if commit})
    unknown = sum(commit is None for commit in said)
    out = f"; trained at commit {', '.join(known)}" if known else ""
    if unknown:
        out += f"; {unknown} of {len(said)} models do not say at which commit they were trained"
    return out


def _row(label: str, cell: Mapping[str, Any]) -> tuple[str, ...]:
    metrics = ("mlm_accuracy", "sop_accuracy", "nsp_accuracy")
    seeds = cell["seeds"].values()
    loss = [scores["mlm_loss"] for scores in seeds]
    spread = "" if len(loss) == 1 else f" ({min(loss):.3f}–{max(loss):.3f})"
    percents = [_percent([scores[metric] for scores in seeds]) for metric in metrics]
    size = f"{cell['parameters'] / 1e6:.2f} M"
    return (label, size, f"{cell['relative_work']:.2f}", f"{fmean(loss):.3f}{spread}", *percents)


_SHORT = {"next sentence (NSP)": "NSP", "sentence order (SOP)": "SOP"}


def draw(record: Record) -> dict[str, str]:
    """The accuracy on masked words of every row, and both orders for the objectives; a dot is a seed."""
    panels = [_panel(record, name) for name in ("sharing", "embedding", "iterations")]
    rows = TABLES["objective"].rows
    names, values = [], []
    for metric, task in (("sop_accuracy", "SOP"), ("nsp_accuracy", "NSP")):
        names += [f"{_SHORT.get(label, label)} ► {task}" for label in rows]
        values += [[100 * value for value in values_of(record["cells"], cell, metric)] for cell in rows.values()]
    panels.append(dots("trained on ► asked, %", names, values, [f"{fmean(row):.1f}" for row in values]))
    return {"ablate": draw_svg(panels, _SHOWN)}


_SHOWN = (
    "Accuracy on masked words by sharing, embedding and iterations, and on sentence order by objective; a dot is a seed"
)


def _panel(record: Record, name: str) -> Panel:
    rows, cells = TABLES[name].rows, record["cells"]
    values = [[100 * value for value in values_of(cells, cell, "mlm_accuracy")] for cell in rows.values()]
    return dots(f"{name}: masked words, %", list(rows), values, [f"{fmean(row):.1f}" for row in values])


PART = Part("ablate", to_markdown, lambda record: {"ablate": _SHOWN}, draw)
