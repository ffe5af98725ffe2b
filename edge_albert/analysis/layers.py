"""What each iteration does to real text: refinement, not one layer applied for nothing.

Over every token that is not padding, per application of a layer: the L2 distance and the angle between its input and
its output (the paper's Figure 1), the norm of its output, and the entropy of its attention. Over labelled text: what
the model's own head answers when it reads the hidden states after 1, 2, … iterations. A model with one shared layer is
run for twice as many iterations as it was trained for; one with several cannot be, since it has no layer for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibration.texts import TextFile, read_labelled
from edge_albert.analysis.picture import Panel, curves, draw_svg
from edge_albert.analysis.record import Part, Record, begin, read_text
from edge_albert.checkpoint import Checkpoint, read_checkpoint
from edge_albert.config import AlbertConfig
from edge_albert.errors import DataError, EdgeAlbertError
from edge_albert.model import AlbertForTask, AlbertModel, AlbertOutput, build_model
from edge_albert.progress import Progress
from edge_albert.reports.tables import markdown_table
from edge_albert.tasks import get_task
from edge_albert.tokenizer import load_tokenizer
from edge_albert.training.data.batches import EncodedTexts, collate, encode_examples, evenly, sorted_batches
from edge_albert.training.data.examples import Example
from edge_albert.training.finetuning.objectives import OBJECTIVES
from edge_albert.training.weights import load_arrays

MOST_TEXTS, MOST_LABELLED = 256, 2000
LONGEST = 128  # tokens of a text for the curves: attention is kept of every application, S² of it
BATCH = 16
BEYOND = 2  # times as many iterations as trained


@dataclass(frozen=True)
class Request:
    """models: checkpoint folders or hub names. texts: one a line. data: labelled text, and how finetune reads it."""

    models: tuple[str, ...]
    texts: Path
    data: TextFile | None = None
    most_texts: int = MOST_TEXTS
    most_labelled: int = MOST_LABELLED


@dataclass(frozen=True)
class _Opened:
    """A model with `BEYOND` times its iterations where it shares one layer, and what it was trained with."""

    name: str
    checkpoint: Checkpoint
    model: AlbertForTask

    @property
    def trained(self) -> int:
        """Applications of a layer that the model was trained with."""
        return _applications(self.checkpoint.config)

    def answer(self, number: int, encoded: AlbertOutput) -> Tensor:
        """The logits of application `number`, from 0: of the head trained to read there, else of the last one."""
        config = self.checkpoint.config
        iteration, between = divmod(number + 1, config.inner_group_num)
        if config.exit_heads == "per-iteration" and not between and iteration < config.num_hidden_layers:
            read = encoded.last_hidden_state if encoded.pooler_output is None else encoded.pooler_output
            return self.model.exits[iteration - 1](read)  # type: ignore[union-attr,index,operator]
        return self.model.head(encoded)  # type: ignore[operator,union-attr]

    @property
    def longest(self) -> int:
        return self.checkpoint.config.max_position_embeddings


def measure(request: Request, command: str) -> Record:
    """The curves of every model, and with `data` the accuracy of those with a head for it.

    Raises DataError for a file without text, EdgeAlbertError for a model with one iteration, which has no curve, and
    when labelled text is given and no model can be judged by it.
    """
    texts = read_lines(request.texts)
    opened = [_open(name, source) for name, source in zip(short_names(request.models), request.models, strict=True)]
    judged = [one for one in opened if one.checkpoint.task in OBJECTIVES]
    if request.data is not None and not judged:
        raise EdgeAlbertError(
            f"{request.data.path}: no model has a head that it could judge ({', '.join(OBJECTIVES)}): leave "
            "--data out, or name a fine-tuned model"
        )
    chosen = _spread(texts, request.most_texts)
    models = []
    for one in opened:
        found = _describe(one) | {"curves": _curves(one, chosen)}
        if request.data is not None and one in judged:
            found["readout"] = _read_out(one, request.data, request.most_labelled)
        models.append(found)
    return {**begin("layers", command, None), "texts": len(chosen), "models": models}


def read_lines(path: Path) -> list[str]:
    """The texts of a file, one a line, blank lines left out. Raises DataError when there is none, or not UTF-8."""
    texts = [line.strip() for line in read_text(path).split("\n") if line.strip()]
    if not texts:
        raise DataError(f"{path}: holds no text: put one text on each line")
    return texts


def short_names(models: Sequence[str]) -> list[str]:
    """What to call the models: the last part of each path that is not the `model` of a pre-training run; where two are
    the same, as much of the path as tells them apart."""
    parts = [[part for part in Path(model).parts if part != "model"] or ["model"] for model in models]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{number}: {name}" for number, name in enumerate(names, start=1)]


def _spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of them, evenly over the whole."""
    return [items[i] for i in evenly(len(items), most)]


def _applications(config: AlbertConfig) -> int:
    return config.num_hidden_layers * config.inner_group_num


def _open(name: str, source: str) -> _Opened:
    checkpoint = read_checkpoint(source)
    config = checkpoint.config
    if _applications(config) < 2:
        raise EdgeAlbertError(
            f"{source}: num_hidden_layers is 1: one iteration makes no curve, name a model with two or more"
        )
    load_tokenizer(checkpoint.folder).check_size(config.vocab_size)
    if config.num_hidden_groups == 1:
        config = replace(config, num_hidden_layers=BEYOND * config.num_hidden_layers)
    model = build_model(config, checkpoint.task)
    load_arrays(model, checkpoint.tensors)
    return _Opened(name, checkpoint, model.eval())


def _describe(one: _Opened) -> dict[str, Any]:
    config = one.checkpoint.config
    return {
        "name": one.name, "task": one.checkpoint.task, "iterations": one.trained, "hidden_size": config.hidden_size,
        "layers": config.num_hidden_groups * config.inner_group_num, "tied_across_groups": config.tied_across_groups,
    }  # fmt: skip


# -- curves ------------------------------------------------------------------------------------------------------------


def _batches(one: _Opened, texts: EncodedTexts, label: str) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """(inputs, row numbers) of every batch, with progress."""
    device = next(one.model.parameters()).device
    with Progress(len(texts), f"{one.name}: {label}") as bar:
        for rows in sorted_batches(texts.lengths, BATCH):
            inputs, _ = collate(texts, rows, device)
            yield inputs, rows
            bar.update(len(rows))


@torch.no_grad()
def _curves(one: _Opened, texts: Sequence[str]) -> dict[str, list[float]]:
    """Each figure per application of a layer, the mean over all tokens that are not padding."""
    tokenizer = load_tokenizer(one.checkpoint.folder)
    rows = [Example(text, None, "", line) for line, text in enumerate(texts, start=1)]
    encoded = encode_examples(tokenizer, rows, np.zeros(len(rows)), min(LONGEST, one.longest))
    sums: dict[str, np.ndarray] = {}
    tokens = 0.0
    for inputs, _ in _batches(one, encoded, "curves"):
        out = one.model.encode(**inputs, output_hidden_states=True, output_attentions=True)
        kept = inputs["attention_mask"].bool()  # (B, S)
        tokens += int(kept.sum())
        for name, values in _figures(out, kept).items():
            sums[name] = sums.get(name, 0.0) + values
    return {name: (total / tokens).tolist() for name, total in sums.items()}


def _figures(out: AlbertOutput, kept: Tensor) -> dict[str, np.ndarray]:
    """Sums over the kept tokens, per application, all float64 of (applications,); kept: (B, S)."""
    distance, angle, norm, entropy = [], [], [], []
    for before, after, probs in zip(out.hidden_states, out.hidden_states[1:], out.attentions, strict=False):
        x, y = before[kept].double(), after[kept].double()  # (T, H)
        distance.append(float((y - x).norm(dim=-1).sum()))
        cosine = torch.cosine_similarity(x, y, dim=-1).clamp(-1, 1)
        angle.append(float(torch.rad2deg(cosine.arccos()).sum()))
        norm.append(float(y.norm(dim=-1).sum()))
        logs = torch.special.entr(probs).sum(dim=-1).mean(dim=1)  # (B, A, S, S) ► nats (B, S), the mean over the heads
        entropy.append(float(logs[kept].double().sum()))
    return {
        "l2_distance": np.array(distance),
        "angle_degrees": np.array(angle),
        "output_norm": np.array(norm),
        "attention_entropy": np.array(entropy),
    }


# -- reading out -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _read_out(one: _Opened, data: TextFile, most: int) -> dict[str, Any]:
    """The head's metric after every application: {"metric", "rows", "scores": one per application}."""
    checkpoint = one.checkpoint
    task = get_task(str(checkpoint.task))
    examples, gold = read_labelled(data, checkpoint.config, task)
    chosen = _spread(range(len(gold)), most)
    rows = [examples.rows[i] for i in chosen]
    texts = encode_examples(load_tokenizer(checkpoint.folder), rows, gold[chosen], one.longest)
    objective = OBJECTIVES[task.name](checkpoint.config.num_labels)
    applications = _applications(one.model.config)
    predicted = np.zeros((applications, len(texts)))
    for inputs, numbers in _batches(one, texts, "reading out"):
        out = one.model.encode(**inputs, output_hidden_states=True)
        for number, hidden in enumerate(out.hidden_states[1:]):
            logits = one.answer(number, read_after(one.model, hidden, out.attention_mask))
            predicted[number, numbers] = objective.predict(logits.float()).cpu().numpy()
    metric, score = next(iter(objective.metrics.items()))
    return {"metric": metric, "rows": len(texts), "scores": [score(texts.labels, row) for row in predicted]}


def read_after(model: AlbertForTask, hidden: Tensor, mask: Tensor | None) -> AlbertOutput:
    """What the encoder would have given to the head, had it stopped at these hidden states (B, S, H)."""
    encoder = model if isinstance(model, AlbertModel) else model.albert
    return AlbertOutput(hidden, encoder.pool(hidden), mask)


# -- tables and pictures -----------------------------------------------------------------------------------------------

_CURVES = {
    "l2_distance": "L2 distance of input and output",
    "angle_degrees": "angle between input and output, degrees",
    "output_norm": "norm of the output",
    "attention_entropy": "entropy of the attention, nats",
}


def to_markdown(record: Record) -> str:
    """A table for each model; a line below the trained number of iterations is beyond it."""
    return "\n\n".join(_model_table(model, record["texts"]) for model in record["models"])


def _model_table(model: dict[str, Any], texts: int) -> str:
    trained, read = model["iterations"], model.get("readout")
    header = ["after", "L2 distance", "angle", "norm", "attention entropy", *([read["metric"]] if read else [])]
    rows = []
    for i, values in enumerate(zip(*(model["curves"][name] for name in _CURVES), strict=True)):
        distance, angle, norm, entropy = values
        after = f"{i + 1}" + (" (as trained)" if i + 1 == trained else " (beyond)" if i + 1 > trained else "")
        cells = [after, f"{distance:.2f}", f"{angle:.1f}°", f"{norm:.2f}", f"{entropy:.2f}"]
        rows.append([*cells, *([f"{100 * read['scores'][i]:.1f}"] if read else [])])
    kind = "one shared layer" if model["layers"] == 1 else f"{model['layers']} layers"
    judged = f"; {read['metric']} in per cent over {read['rows']} labelled texts" if read else ""
    return (
        f"**{model['name']}** ({kind}, H = {model['hidden_size']}), over {texts} texts{judged}:\n\n"
        + markdown_table(header, rows)
    )


def pictures(record: Record) -> dict[str, str]:
    """The second one only where something was read out."""
    shown = {
        "layers": "What every iteration changes: distance and angle of its input and output, norm, attention entropy"
    }
    if any("readout" in model for model in record["models"]):
        shown["layers-readout"] = "What the head answers after 1, 2, … iterations, and beyond those it was trained for"
    return shown


def draw(record: Record) -> dict[str, str]:
    """One picture of the curves, one of the accuracies; dotted lines are at the trained number of iterations."""
    models = record["models"]
    marks = sorted({model["iterations"] for model in models})
    panels: list[Panel] = []
    for name, title in _CURVES.items():
        lines = [(m["name"], range(1, len(m["curves"][name]) + 1), m["curves"][name]) for m in models]
        panels.append(curves(title, lines, marks=marks, legend=not panels and len(lines) > 1, from_zero=True))
    shown = pictures(record)
    out = {"layers": draw_svg(panels, shown["layers"])}
    read = [model for model in models if "readout" in model]
    if read:
        lines = [(m["name"], range(1, len(m["readout"]["scores"]) + 1), m["readout"]["scores"]) for m in read]
        title = f"{read[0]['readout']['metric']}, read out after so many iterations"
        panel = curves(title, lines, "iterations", marks=sorted({m["iterations"] for m in read}), legend=len(read) > 1)
        out["layers-readout"] = draw_svg([panel], shown["layers-readout"])
    return out


PART = Part("layers", to_markdown, pictures, draw)
