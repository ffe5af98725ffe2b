"""Text ► ids and offsets for every ALBERT: SentencePiece (spiece.model) or WordPiece (vocab.txt), without transformers.

`load_tokenizer(folder)` reads a Hugging Face folder or Google's; a bundle stores `tokenizer.rules` in its bundle.json
and opens the same tokenizer with `Tokenizer.from_rules(folder, rules)`. Which tokenizer the ids are equal to (for
SentencePiece: transformers 4.57's slow `AlbertTokenizer`, which is the one of pre-training), and where transformers 5
differs, is said in tokenization/spiece.py and wordpiece.py.

Special tokens written in a text ("[SEP]", "<pad>", …) are ordinary characters, so that nobody's message can end a
sequence or mask a word. `allow_special=True` reads them as tokens, which is what transformers does with every text.

    tokenizer = load_tokenizer("albert-base-v2/")
    encoding = tokenizer.encode("Is it raining?", "It has not rained since May.", max_length=128)
    start, end = encoding.offsets[1]          # characters of the text the token comes from
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from edge_albert.errors import TokenizerError
from edge_albert.tokenization.pieces import Encoding, Pieces, build_encoding, kept_lengths, window_ranges
from edge_albert.tokenization.spiece import SpieceModel
from edge_albert.tokenization.tokenizer_config import Description, added_tokens, describe_folder, describe_rules
from edge_albert.tokenization.tokenizer_json import vocabulary_bytes, vocabulary_name
from edge_albert.tokenization.wordpiece import WordPieceModel

__all__ = ["Encoding", "Tokenizer", "load_tokenizer"]


class Tokenizer:
    """A vocabulary with its rules; made by `load_tokenizer` or `Tokenizer.from_rules`."""

    def __init__(self, model: SpieceModel | WordPieceModel, *, model_max_length: int | None = None) -> None:
        self._model = model
        self.model_max_length = model_max_length
        self._token_ids = {token: i for i, token in enumerate(model.tokens)}
        names = sorted(model.special.names.values(), key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, names)))

    # -- what it is --------------------------------------------------------------------------------------------------

    def check_size(self, vocab_size: int, whose: str = "the model's") -> None:
        """Raises TokenizerError unless it has as many entries as the model it is to serve, which `whose` names."""
        if self.vocab_size != vocab_size:
            raise TokenizerError(
                f"{self.path}: has {self.vocab_size} entries, {whose} vocab_size is {vocab_size}: they belong to "
                "different models"
            )

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, special tokens included; the ids are 0 … vocab_size - 1."""
        return len(self._model.tokens)

    @property
    def pad_id(self) -> int:
        return self._model.special.ids["pad"]

    @property
    def unk_id(self) -> int:
        return self._model.special.ids["unk"]

    @property
    def cls_id(self) -> int:
        return self._model.special.ids["cls"]

    @property
    def sep_id(self) -> int:
        return self._model.special.ids["sep"]

    @property
    def mask_id(self) -> int:
        """TokenizerError where the vocabulary has no mask token (it is needed for pre-training only)."""
        try:
            return self._model.special.ids["mask"]
        except KeyError:
            raise TokenizerError(f"{self.path}: has no mask token") from None

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self._model.special.ids.values())

    @property
    def path(self) -> Path:
        """The file the vocabulary was read from."""
        return self._model.path

    @property
    def vocabulary(self) -> bytes:
        """What stands in the bundle as `rules["file"]`: spiece.model or vocab.txt."""
        return vocabulary_bytes(self.path)

    @property
    def rules(self) -> dict[str, Any]:
        """Everything but the vocabulary file, JSON-able: what `from_rules` needs. `file` is the bare file name."""
        special = self._model.special
        rules: dict[str, Any] = {
            "kind": self._model.kind,
            "file": vocabulary_name(self.path),
            **self._model.options,
            "model_max_length": self.model_max_length,
            "special_tokens": {role: {"token": special.names[role], "id": i} for role, i in special.ids.items()},
        }
        if self._model.kind == "sentencepiece":
            rules["sentencepiece_version"] = sentencepiece.__version__
        return rules

    @classmethod
    def from_rules(cls, folder: str | Path, rules: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer that `rules` (see there) describe, its vocabulary file in `folder`.

        Raises TokenizerError for an unknown kind, a missing or damaged file, a field that is missing or wrong, or ids
        of special tokens that the file contradicts. Another sentencepiece version than the rules name is a warning:
        versions break ties between equally good segmentations differently, in about 3 of 10,000 ordinary texts.
        """
        description, ids = describe_rules(Path(folder), rules)
        model = _open(description)
        if dict(model.special.ids) != ids:
            raise TokenizerError(
                f"{model.path}: its special tokens have the ids {dict(model.special.ids)}, the tokenizer rules say "
                f"{ids}: the file belongs to another model"
            )
        if description.kind == "sentencepiece":
            _warn_of_version(rules.get("sentencepiece_version"))
        return cls(model, model_max_length=description.model_max_length)

    # -- text to ids -------------------------------------------------------------------------------------------------

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        max_length: int | None = 512,
        truncation: str = "longest_first",
        allow_special: bool = False,
    ) -> Encoding:
        """[CLS] text [SEP], or [CLS] text [SEP] pair [SEP], at most `max_length` tokens in all (None: no limit).

        truncation: "longest_first", "only_first", "only_second" (as in transformers) or "none" (may be too long).
        allow_special: read special tokens that the texts spell out as such; see the top of this file.
        Raises TokenizerError when `max_length` cannot be met that way.
        """
        first = self._split(text, allow_special)
        second = None if pair is None else self._split(pair, allow_special)
        room = self._room(max_length, pair is not None)
        keep_first, keep_second = kept_lengths(len(first), None if second is None else len(second), room, truncation)
        return self._build(first[:keep_first], None if second is None else second[:keep_second])

    def encode_windows(
        self,
        text: str,
        pair: str | None = None,
        *,
        max_length: int = 512,
        stride: int = 128,
        truncation: str | None = None,
        allow_special: bool = False,
    ) -> list[Encoding]:
        """As many encodings as the long text needs, each sharing `stride` tokens with the one before.

        What transformers gives with return_overflowing_tokens. truncation says which text goes through the window,
        "only_first" or "only_second"; by default the second of a pair (question, context). Offsets always count in the
        whole text. Raises TokenizerError when the other text leaves no room for a window longer than `stride`.
        """
        cut = truncation or ("only_first" if pair is None else "only_second")
        if cut not in ("only_first", "only_second") or (cut == "only_second" and pair is None):
            raise TokenizerError(
                f"truncation {cut!r}: windows go over one text, 'only_first' or the pair's 'only_second'"
            )
        first = self._split(text, allow_special)
        second = None if pair is None else self._split(pair, allow_special)
        room = max_length - self.num_special_tokens(pair is not None)
        if cut == "only_second" and second is not None:
            ranges = window_ranges(len(second), room - len(first), stride)
            return [self._build(first, second[start:end]) for start, end in ranges]
        ranges = window_ranges(len(first), room - (0 if second is None else len(second)), stride)
        return [self._build(first[start:end], second) for start, end in ranges]

    def tokenize(self, text: str) -> list[str]:
        """The pieces of a text as strings, without special tokens."""
        return self._model.tokenize(_checked(text))

    def ids(self, text: str) -> list[int]:
        """The ids of a text without special tokens or offsets: the fast way through a corpus."""
        return self._model.ids(_checked(text))

    def num_special_tokens(self, pair: bool) -> int:
        """How many tokens `encode` adds: 2 to one text, 3 to a pair."""
        return 3 if pair else 2

    # -- ids to text -------------------------------------------------------------------------------------------------

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Readable text; the unknown token is always shown by its name. Not an inverse: case and accents are gone."""
        skip = self.special_ids - {self.unk_id} if skip_special_tokens else frozenset()
        return self._model.decode([self.id_to_token(i) for i in ids if i not in skip])

    def id_to_token(self, i: int) -> str:
        if not 0 <= i < self.vocab_size:
            raise TokenizerError(f"id {i} is not in the vocabulary (0 to {self.vocab_size - 1})")
        return self._model.tokens[i]

    def token_to_id(self, token: str) -> int:
        """The id of an entry of the vocabulary; the unknown token's for any other string."""
        return self._token_ids.get(token, self.unk_id)

    # -- the steps ---------------------------------------------------------------------------------------------------

    def _split(self, text: str, allow_special: bool) -> Pieces:
        if not allow_special:
            return self._model.split(_checked(text))
        parts: list[Pieces] = []
        done = 0
        for found in self._special_pattern.finditer(_checked(text)):
            parts.append(self._model.split(text[done : found.start()]).shifted(done))
            at, done = found.span()
            parts.append(
                Pieces(np.array([self._token_ids[found[0]]], dtype=np.int32), np.array([at]), np.array([done]))
            )
        parts.append(self._model.split(text[done:]).shifted(done))
        return Pieces.concatenate(parts)

    def _room(self, max_length: int | None, pair: bool) -> int | None:
        if max_length is None:
            return None
        room = max_length - self.num_special_tokens(pair)
        if room < 0:
            raise TokenizerError(
                f"max_length {max_length} leaves no room beside {self.num_special_tokens(pair)} special tokens"
            )
        return room

    def _build(self, first: Pieces, second: Pieces | None) -> Encoding:
        return build_encoding(first, second, cls_id=self.cls_id, sep_id=self.sep_id)


def load_tokenizer(folder: str | Path, rules: Mapping[str, Any] | None = None) -> Tokenizer:
    """The tokenizer in a model's folder: by `rules` if given, else by its files.

    A folder has spiece.model (or Google's 30k-clean.model) or vocab.txt, and may have tokenizer_config.json and
    special_tokens_map.json. With both vocabularies present, spiece.model is taken unless tokenizer_class names BERT's.
    Raises TokenizerError for a folder with neither, damaged files, and tokens added beyond the vocabulary.
    """
    if rules is not None:
        return Tokenizer.from_rules(folder, rules)
    description = describe_folder(Path(folder))
    model = _open(description)
    beyond = [f"{token!r} ({i})" for token, i in added_tokens(Path(folder)).items() if i >= len(model.tokens)]
    if beyond:
        raise TokenizerError(
            f"{folder}: tokens were added beyond the vocabulary of {len(model.tokens)}: {', '.join(beyond)}; "
            "they cannot be read, train a vocabulary that holds them"
        )
    return Tokenizer(model, model_max_length=description.model_max_length)


def _open(description: Description) -> SpieceModel | WordPieceModel:
    model = SpieceModel if description.kind == "sentencepiece" else WordPieceModel
    return model(description.path, description.special_tokens, **description.options)


def _warn_of_version(version: Any) -> None:
    here = sentencepiece.__version__
    if version != here:
        warnings.warn(
            f"the bundle was made with sentencepiece {version}, this is {here}: a few texts in 10,000 may be segmented "
            f"otherwise; install sentencepiece=={version} for the same ids",
            stacklevel=3,
        )


def _checked(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"a text must be str, not {type(text).__name__}")
    return text
