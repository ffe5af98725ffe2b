"""Token classification: sentences whose words have tags. The first piece of a word carries its tag.

Words are joined by spaces and tokenised as the text a device would see. A sentence longer than the model is read in
windows that overlap, and each word is learnt and judged where its first piece stands farthest from a window's edge: the
window in which the runtime (runtime/spans.py) reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edge_albert.errors import DataError
from edge_albert.tokenizer import Encoding, Tokenizer
from edge_albert.training.data.batches import Inputs, TokenRows, on_device, pad_arrays, padded
from edge_albert.training.data.examples import ColumnChoice, Columns, Examples, collect, pick_column, text_of
from edge_albert.training.data.rows import (
    Place,
    Row,
    Rows,
    Source,
    numbered_lines,
    read_text,
    snips_rows,
    structured_rows,
)
from edge_albert.training.finetuning.objectives import Objective
from edge_albert.training.metrics import entities

WORD_COLUMNS = ("tokens", "words")
TAG_COLUMNS = ("tags", "ner_tags", "labels")
NO_TAG = -100  # a token without a tag: what PyTorch's cross entropy leaves out
OUTSIDE = "O"


@dataclass(frozen=True)
class TaggedSentence:
    """Words and their tags, one for each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: Place


def tags_of(sentence: TaggedSentence) -> tuple[str, ...]:
    return sentence.tags


# -- reading -----------------------------------------------------------------------------------------------------------


def read_sentences(source: Source, columns: Columns, *, skip_bad: bool) -> Examples[TaggedSentence]:
    """Rows with tokens and tags (.jsonl, .parquet, a data set's split), a SNIPS folder, or any other file as CoNLL's.

    CoNLL: a word a line, the word first and its tag last, blank lines between sentences; -DOCSTART- is left out. A
    sentence is bad when it has no words, another number of tags than of words, or an empty word or tag. Raises
    DataError as `collect` does.
    """

    def pick(names: list[str]) -> tuple[str, str]:
        text = pick_column("text", columns.text, WORD_COLUMNS, names, source)
        return text, pick_column("label", columns.label, TAG_COLUMNS, names, source)

    choose = ColumnChoice(source, pick, skip_bad)

    def parse(row: Row, place: Place) -> TaggedSentence | str:
        chosen = choose(row)
        if isinstance(chosen, str):
            return chosen
        words, tags = (row.get(name) for name in chosen)
        if not isinstance(words, list) or not isinstance(tags, list):
            return f"{' and '.join(chosen)} are not lists"
        return _sentence(list(map(text_of, words)), list(map(text_of, tags)), place)

    return _with_names(collect(source, structured_rows(source, _file_rows), parse, skip_bad=skip_bad))


def _with_names(found: Examples[TaggedSentence]) -> Examples[TaggedSentence]:
    """As given. DataError for tags that entities cannot be read from: numbers without names, and BILOU's."""
    tags = {tag for row in found.rows for tag in row.tags}
    if all(tag.isdigit() for tag in tags):
        raise DataError(
            f"{found.path}: the tags are numbers ({', '.join(sorted(tags)[:3])}), which say nothing of where an entity "
            "begins and ends: write their names, such as O, B-PER, I-PER"
        )
    if bilou := sorted(tag for tag in tags if tag.startswith(("U-", "L-"))):
        raise DataError(f"{found.path}: the tag {bilou[0]} is BILOU's: write S- for U- and E- for L-")
    return found


def _sentence(words: list[str], tags: list[str], place: Place) -> TaggedSentence | str:
    if not words:
        return "no words"
    if len(words) != len(tags):
        return f"{len(words)} words and {len(tags)} tags"
    for i, (word, tag) in enumerate(zip(words, tags, strict=True), start=1):
        if not word.strip() or not tag.strip():
            return f"empty {'tag' if word.strip() else 'word'} (the {i}. of the sentence)"
    return TaggedSentence(tuple(words), tuple(tags), place)


def _file_rows(path: Path) -> Rows:
    return snips_rows(path) if path.is_dir() else _conll_rows(path)


def _conll_rows(path: Path) -> Rows:
    """A row for each sentence, at the line where it begins; a line without a tag spoils its sentence."""
    words: list[str] = []
    tags: list[str] = []
    begun, fault = 0, ""
    for number, line in [*numbered_lines(read_text(path)), (0, "")]:
        fields = line.split()
        if fields and fields[0] != "-DOCSTART-":
            begun = begun or number
            words.append(fields[0])
            tags.append(fields[-1])
            if len(fields) < 2 and not fault:
                begun, fault = number, "a word without a tag"
        elif begun:
            yield begun, fault or {WORD_COLUMNS[0]: words, TAG_COLUMNS[0]: tags}
            words, tags, begun, fault = [], [], 0, ""


# -- what the model gets -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaggedWindows(TokenRows):
    """N windows over the sentences `labels`. token_tags: for each, a tag's number or NO_TAG for every token.

    place_of: for each sentence (words, 2): the window and the token that carries the word's tag; -1, -1 for a word that
    the tokenizer makes nothing of. names: the tags by number.
    """

    labels: list[tuple[str, ...]]
    place_of: list[np.ndarray]
    input_ids: list[np.ndarray]
    token_tags: list[np.ndarray]
    sentence_lines: list[Place]
    names: tuple[str, ...]
    pad_id: int

    @property
    def lines(self) -> np.ndarray:
        return np.array(self.sentence_lines)

    @property
    def sentence_of(self) -> np.ndarray:
        """The sentence that each window is of, (N,)."""
        out = np.zeros(len(self.input_ids), np.int64)
        for number, places in enumerate(self.place_of):
            out[places[places[:, 0] >= 0, 0]] = number
        return out

    def collate(self, rows: np.ndarray, device: torch.device) -> tuple[Inputs, Tensor]:
        """The windows and the tags of their tokens, (B, S) each."""
        ids = [self.input_ids[row] for row in rows]
        tags = pad_arrays([self.token_tags[row] for row in rows], NO_TAG)
        return padded(ids, [np.zeros_like(one) for one in ids], self.pad_id, device), on_device(tags, device)

    def assemble(self, outputs: Sequence[np.ndarray]) -> list[list[str]]:
        """Tag numbers (S,) of each window ► the tags of each sentence's words."""
        return [
            [self.names[outputs[window][token]] if window >= 0 else OUTSIDE for window, token in places]
            for places in self.place_of
        ]


def encode_sentences(
    tokenizer: Tokenizer, sentences: Sequence[TaggedSentence], names: Sequence[str], max_length: int, stride: int
) -> TaggedWindows:
    """Tokenise every sentence, in windows of `max_length` tokens that share `stride` where it is longer.

    Windows that carry no tag are left out: there is nothing to learn from them. Raises DataError when that leaves none.
    """
    out = TaggedWindows([s.tags for s in sentences], [], [], [], [], tuple(names), tokenizer.pad_id)
    numbers = {name: i for i, name in enumerate(names)}
    for sentence in sentences:
        windows = tokenizer.encode_windows(" ".join(sentence.words), max_length=max_length, stride=stride)
        places = _word_places(sentence.words, windows, stride)
        rows: dict[int, int] = {}  # window of the sentence ► row here
        for window in sorted(set(places[:, 0]) - {-1}):
            rows[window] = len(out)
            tags = np.full(len(windows[window]), NO_TAG, dtype=np.int64)
            for word in np.flatnonzero(places[:, 0] == window):
                tags[places[word, 1]] = numbers[sentence.tags[word]]
            out.input_ids.append(np.array(windows[window].input_ids, dtype=np.int32))
            out.token_tags.append(tags)
            out.sentence_lines.append(sentence.line)
        out.place_of.append(np.array([(rows.get(window, -1), token) for window, token in places]))
    if not out.input_ids:
        raise DataError(f"{sentences[0].line}: neither this sentence nor any other has a word the tokenizer knows")
    return out


def _word_places(words: Sequence[str], windows: Sequence[Encoding], stride: int) -> np.ndarray:
    """(words, 2): window and token of each word's first piece, a lone word boundary included; -1 where it has none."""
    ends = np.array(list(accumulate(len(word) + 1 for word in words)))  # in the joined text, with the space behind
    places = np.full((len(words), 2), -1)
    margins = np.full(len(words), -1)
    first_piece: dict[int, int] = {}  # word ► number of its first piece in the sentence
    at = 0
    for window, encoding in enumerate(windows):
        tokens = len(encoding) - 2  # between [CLS] and [SEP]
        for k in range(tokens):
            word = int(np.searchsorted(ends, encoding.offsets[k + 1][0], side="right"))
            margin = min(k, tokens - 1 - k)
            if word < len(words) and first_piece.setdefault(word, at + k) == at + k and margin > margins[word]:
                places[word], margins[word] = (window, k + 1), margin
        at += tokens - stride
    return places


# -- learning ----------------------------------------------------------------------------------------------------------


def token_classification(num_labels: int) -> Objective:
    """A tag for each word: logits (B, S, num_labels), labels (B, S) int64 with NO_TAG where there is none."""
    return Objective(
        loss=lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NO_TAG),
        predict=lambda logits: logits.argmax(dim=-1),
        metrics={
            "f1": entities.entity_f1,
            "precision": entities.precision,
            "recall": entities.recall,
            "accuracy": entities.tag_accuracy,
        },
    )
