"""A tiny SentencePiece model for tests that must run without the genuine one.

It has ALBERT's shape in small: unigram, nmt_nfkc, dummy prefix, ids 0 <pad>, 1 <unk>, 2 [CLS], 3 [SEP], 4 [MASK], then
ALBERT's eight user-defined pieces. The training text is made by the little grammar below, so the same sentencepiece
version gives the same bytes everywhere.
"""

from __future__ import annotations

from pathlib import Path

import sentencepiece

TINY_VOCAB_SIZE = 176

_SUBJECTS = ("the baker", "a small dog", "my neighbour", "this engineer", "the tall captain", "nobody")
_STEMS = (
    "paint", "open", "repair", "carry", "test", "want", "read", "turn", "help", "lift", "print", "mark", "count",
    "burn", "clean", "farm", "sail", "train", "work", "walk", "answer", "call", "pack", "plant",
)  # fmt: skip
_SUFFIXES = ("s", "ed", "ing", "er", "ers", "able")
_OBJECTS = (
    "the blue door",
    "two letters from london",
    "a quiet phone",
    "the unread message",
    "92,000 bricks",
    "9,5 metres of rope",
    "a map and a lamp",
    "the movie everybody loved",
)
_ENDINGS = (
    "in the morning.",
    "on 14 may 2026, at 7:30.",
    "without help!",
    "again?",
    '"by accident", he said.',
    "(twice).",
)


def tiny_corpus() -> list[str]:
    """Every stem with every suffix, each in a sentence whose other parts go round; a fixed order, 864 lines."""
    lines: list[str] = []
    for stem in _STEMS:
        for suffix in _SUFFIXES:
            for subject in _SUBJECTS:
                n = len(lines)
                lines.append(f"{subject} {stem}{suffix} {_OBJECTS[n % 8]} {_ENDINGS[n // 8 % 6]}")
    return lines


def train_tiny_spiece(folder: str | Path) -> Path:
    """Train the model, write it as `folder`/spiece.model (the folder is made if need be) and return that path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "spiece.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(tiny_corpus()),
            model_writer=file,
            model_type="unigram",
            vocab_size=TINY_VOCAB_SIZE,
            character_coverage=1.0,
            normalization_rule_name="nmt_nfkc",
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=["[CLS]", "[SEP]", "[MASK]"],
            user_defined_symbols=["(", ")", '"', "-", ".", "–", "£", "€"],
            num_threads=1,
            minloglevel=2,
        )
    return path
