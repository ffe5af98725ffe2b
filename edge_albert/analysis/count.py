"""Counting by formula: parameters, multiply-adds, bytes and activations of a shape, and what each saving saves.

Counts are of unique weights: a shared one counts once. "Encoder" is embeddings, projection, layers and pooler, without
a head; heads are counted apart. Multiply-adds are those of matrix products. BERT's own rows (`bert-…`, not the presets
`bert-…-shape`) have no projection E ► H, as BERT has none. tests/test_analysis_count.py holds every formula to built
models, transformers' among them, and to PyTorch's flop counter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from converters.convert import BYTES_PER_PARAMETER
from edge_albert.analysis.picture import bars, draw_svg
from edge_albert.analysis.record import Part, Record, begin
from edge_albert.config import PRESETS, AlbertConfig, Parameters, count_macs, count_parameters
from edge_albert.reports.tables import markdown_table, megabytes

LENGTHS = (16, 128, 512)
BATCHES = (1, 8, 32)
PRECISIONS = ("fp32", "fp16", "int8", "int4")
USUAL_EMBEDDING = 128  # what a shape that is not factorised would take: the paper's choice (section 4.2)


@dataclass(frozen=True)
class Shape:
    """A shape to count. projected: it has the projection E ► H, which an ALBERT always has and a BERT never."""

    config: AlbertConfig
    projected: bool = True

    def parameters(self) -> Parameters:
        """Of the encoder, pooler included."""
        counted = count_parameters(self.config)
        return counted if self.projected else replace(counted, projection=0)

    def macs(self, length: int) -> int:
        """Multiply-adds of the encoder over one sequence of `length` tokens."""
        skipped = 0 if self.projected else length * self.config.embedding_size * self.config.hidden_size
        return count_macs(self.config, length) - skipped


def bert(size: str, vocab_size: int = 30522) -> Shape:
    """BERT itself, size "base" or "large": nothing shared, E = H, no projection. 30,522 words uncased, 28,996 cased."""
    return Shape(replace(PRESETS[f"bert-{size}-shape"], vocab_size=vocab_size), projected=False)


BERTS = ("bert-base", "bert-large")  # what they are called in a record

# the paper's Table 1: millions of parameters
PAPER_TABLE_1: tuple[tuple[str, int, Shape], ...] = (
    ("BERT base", 108, bert("base", 28996)),
    ("BERT large", 334, bert("large", 28996)),
    ("ALBERT base", 12, Shape(PRESETS["albert-base-v1"])),
    ("ALBERT large", 18, Shape(PRESETS["albert-large-v1"])),
    ("ALBERT xlarge", 60, Shape(PRESETS["albert-xlarge-v1"])),
    ("ALBERT xxlarge", 235, Shape(PRESETS["albert-xxlarge-v1"])),
)

# -- the formulas ------------------------------------------------------------------------------------------------------


def count_heads(config: AlbertConfig) -> dict[str, int]:
    """Parameters that each head adds to the encoder; the masked words' output matrix is the word embedding again."""
    e, h = config.embedding_size, config.hidden_size
    own_heads = config.exit_heads == "per-iteration"  # early exit with a classifier after every iteration
    return {
        "masked words": (h * e + e) + 2 * e + config.vocab_size,
        "sentence order": 2 * (h + 1),
        "classifier": config.num_labels * (h + 1) * (config.num_hidden_layers if own_heads else 1),
        "question answering": 2 * (h + 1),
    }


@dataclass(frozen=True)
class Activations:
    """Elements that matrix products write. one_iteration: 6·B·S·H (query, key, value, context, attention's output,
    feed-forward's output) + B·A·S² (scores) + B·S·F. all_iterations: N times as many, at least what training keeps for
    the backward pass. largest: of one tensor; inference needs little more than two of that size at a time.
    """

    one_iteration: int
    all_iterations: int
    largest: int


def count_activations(config: AlbertConfig, batch: int, length: int) -> Activations:
    """For `batch` sequences of `length` tokens. Sharing changes none of these: a shared layer writes N times."""
    hidden = batch * length * config.hidden_size
    scores = batch * config.num_attention_heads * length * length
    inner = batch * length * config.intermediate_size
    one = config.inner_group_num * (6 * hidden + scores + inner)
    return Activations(one, config.num_hidden_layers * one, max(hidden, scores, inner))


def count_savings(config: AlbertConfig) -> dict[str, int]:
    """Parameters of the shape's encoder with neither saving, each alone, and both.

    Without factorising E = H and there is no projection; without sharing each of the N iterations has its own layer. A
    shape with E ≥ H is factorised to 128, or to H where that is smaller.
    """
    small = config.embedding_size if config.embedding_size < config.hidden_size else USUAL_EMBEDDING
    wide = Shape(replace(config, embedding_size=config.hidden_size), projected=False)
    thin = Shape(replace(config, embedding_size=min(small, config.hidden_size)))
    return {
        "neither": _shared(wide, False),
        "factorised": _shared(thin, False),
        "shared": _shared(wide, True),
        "both": _shared(thin, True),
    }


def _shared(shape: Shape, shared: bool) -> int:
    config = shape.config.with_sharing("all" if shared else "none")
    return replace(shape, config=config).parameters().total


# -- the record --------------------------------------------------------------------------------------------------------


def measure(own: Mapping[str, AlbertConfig], command: str) -> Record:
    """Everything above for BERT base and large, every preset, and the caller's own shapes by name."""
    shapes = {name: bert(name.removeprefix("bert-")) for name in BERTS}
    shapes |= {name: Shape(config) for name, config in (PRESETS | dict(own)).items()}
    return {
        **begin("count", command, None),
        "shapes": {name: _facts(shape) for name, shape in shapes.items()},
        "paper_table_1": [
            {"name": name, "paper_millions": millions, "parameters": shape.parameters().total}
            for name, millions, shape in PAPER_TABLE_1
        ],
    }


def _facts(shape: Shape) -> dict[str, Any]:
    config = shape.config
    parameters = shape.parameters()
    lengths = [length for length in LENGTHS if length <= config.max_position_embeddings]
    fields = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_hidden_groups")
    more = ("inner_group_num", "num_attention_heads", "intermediate_size", "tied_across_groups")
    return {
        "config": {name: getattr(config, name) for name in fields + more},
        "parameters": {**asdict(parameters), "total": parameters.total},
        "heads": count_heads(config),
        "macs": {str(n): {"per_sequence": shape.macs(n), "per_token": round(shape.macs(n) / n)} for n in lengths},
        "bytes": {name: round(parameters.total * BYTES_PER_PARAMETER[name]) for name in PRECISIONS},
        "activations": [
            {"batch": batch, "length": n, **asdict(count_activations(config, batch, n))}
            for batch in BATCHES
            for n in lengths
        ],
        "savings": count_savings(config),
    }


# -- tables and picture ------------------------------------------------------------------------------------------------


_SAVINGS = (
    "Parameters with neither saving, each alone, and both, and multiply-adds of 128 tokens. No saving changes the "
    "latter, but for the projection: under 1 % in the large ones."
)
_ACTIVATIONS = (
    "Activations in float32 that the matrix products of one iteration write, by batch B and length S. Training keeps "
    "them for all iterations:"
)


def to_markdown(record: Record) -> str:
    """The tables, the most telling one first."""
    shapes = _merged(record["shapes"])
    tables = (
        (_SAVINGS, _savings_table(shapes)),
        (_paper_note(record), _paper_table(record)),
        ("Parameters by part, in thousands; a head comes on top:", _parts_table(shapes)),
        ("Weights as they would be stored (scales and graph not counted), and multiply-adds:", _cost_table(shapes)),
        (_ACTIVATIONS, _activation_table(shapes)),
    )
    return "\n\n".join(f"{text}\n\n{table}" for text, table in tables)


def _merged(shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Shapes that differ in nothing that is counted, such as v1 and v2 of a released one, share a row."""
    out: dict[str, Any] = {}
    for name, facts in shapes.items():
        same = next((other for other, known in out.items() if known == facts), None)
        if same is None:
            out[name] = facts
        else:
            out = {f"{other}, {name}" if other == same else other: known for other, known in out.items()}
    return out


def _millions(count: float) -> str:
    return f"{count / 1e6:.1f} M"


def _savings_table(shapes: Mapping[str, Any]) -> str:
    rows = [
        (name, *map(_millions, facts["savings"].values()), _giga(facts["macs"].get("128")))
        for name, facts in shapes.items()
    ]
    return markdown_table(("shape", "neither", "factorised", "shared", "both", "multiply-adds"), rows)


def _giga(macs: Mapping[str, int] | None) -> str:
    return "–" if macs is None else f"{macs['per_sequence'] / 1e9:.2f} G"


def _paper_note(record: Record) -> str:
    off = [row for row in record["paper_table_1"] if not _rounds_to_paper(row)]
    said = ", ".join(
        f"{row['name']} ({row['paper_millions']} M there, {_millions(row['parameters'])} here)" for row in off
    )
    return (
        "The paper's Table 1, counted as the encoder with its pooler and without a head, BERT with the 28,996 words of "
        "its cased vocabulary (for BERT, 30,000 words and no pooler round to the same). Transformers' models, into "
        "which the released checkpoints load, have exactly the counted numbers"
        + (
            f"; the paper says another for {said}, and we found no part of the model that accounts for it:"
            if off
            else ":"
        )
    )


def _rounds_to_paper(row: Mapping[str, Any]) -> bool:
    return round(row["parameters"] / 1e6) == row["paper_millions"]


def _paper_table(record: Record) -> str:
    rows = [
        (
            row["name"],
            f"{row['paper_millions']} M",
            _millions(row["parameters"]),
            "yes" if _rounds_to_paper(row) else "no",
        )
        for row in record["paper_table_1"]
    ]
    return markdown_table(("model", "paper", "counted", "the same"), rows)


def _parts_table(shapes: Mapping[str, Any]) -> str:
    parts = ("embedding", "projection", "layers", "pooler", "total")
    heads = ("masked words", "sentence order", "classifier")
    rows = [
        (
            name,
            *(f"{facts['parameters'][part] / 1e3:,.0f}" for part in parts),
            *(f"{facts['heads'][head] / 1e3:,.1f}" for head in heads),
        )
        for name, facts in shapes.items()
    ]
    return markdown_table(("shape", *parts, *(f"head: {head}" for head in heads)), rows)


def _cost_table(shapes: Mapping[str, Any]) -> str:
    rows = [
        (
            name,
            *(megabytes(facts["bytes"][precision]) for precision in PRECISIONS),
            *(f"{macs['per_token'] / 1e6:,.1f} M" for macs in facts["macs"].values()),
        )
        for name, facts in shapes.items()
    ]
    return markdown_table(("shape", *PRECISIONS, *(f"per token, S = {n}" for n in LENGTHS)), rows)


def _activation_table(shapes: Mapping[str, Any]) -> str:
    wanted = ((1, 16), (1, 128), (1, 512), (8, 128), (32, 512))
    rows = []
    for name, facts in shapes.items():
        found = {(row["batch"], row["length"]): row["one_iteration"] for row in facts["activations"]}
        rows.append((name, *(megabytes(4 * found[key]) if key in found else "–" for key in wanted)))
    return markdown_table(("shape", *(f"B = {b}, S = {s}" for b, s in wanted)), rows)


_SHOWN = "Sharing and factorising take a BERT base from 109 to 12 million parameters; its multiply-adds stay the same"


def draw(record: Record) -> dict[str, str]:
    """BERT base's and large's parameters with neither saving, each alone and both, and their multiply-adds."""
    panels = []
    for name, title in zip(BERTS, ("BERT base", "BERT large"), strict=True):
        savings = record["shapes"][name]["savings"]
        names = ("as it is", "factorised", "shared", "both: ALBERT")
        said = [_millions(count) for count in savings.values()]
        panels.append(bars(f"{title}: parameters", names, list(savings.values()), said))
    pairs = [("bert-base", "albert-base-v2"), ("bert-large", "albert-large-v2")]
    both = [name for pair in pairs for name in pair]
    macs = [record["shapes"][name]["macs"]["128"]["per_sequence"] for name in both]
    panels.append(bars("multiply-adds of 128 tokens", both, macs, [f"{count / 1e9:.1f} G" for count in macs]))
    return {"count": draw_svg(panels, _SHOWN, panel_inches=1.6)}


PART = Part("count", to_markdown, lambda record: {"count": _SHOWN}, draw)
