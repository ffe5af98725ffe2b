"""The vocabulary inside a tokenizer.json, as the file it was made from.

transformers 5 saves a fine-tuned ALBERT's tokenizer as tokenizer.json alone. Everything a spiece.model says stands in
it: pieces with their scores, the precompiled character map, which pieces are special. So the SentencePiece model is
written again and everything downstream (this project's runtime, Android) goes on reading one kind of file. For a
WordPiece tokenizer.json the same is done with vocab.txt.

In files from the hub, pieces such as "▁9," carry a penalty of 100 on their score in place of the digit-comma rule; it
is taken off again, since spiece.py applies the rule itself. Files that transformers 5 made from a spiece.model have
ALBERT's eight user-defined pieces as added tokens, at which it cuts the text; a model fine-tuned with one saw other ids
than in pre-training, and than it will see here: `cuts_at_pieces` tells, and the export says so.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edge_albert.errors import TokenizerError

FILE = "tokenizer.json"
_KINDS = {"Unigram": ("sentencepiece", "spiece.model"), "WordPiece": ("wordpiece", "vocab.txt")}
_COMMA_PENALTY = 100.0
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # sentencepiece_model.proto, ModelProto.SentencePiece.Type


def kind_of(path: Path) -> str:
    """ "sentencepiece" or "wordpiece": what a tokenizer.json holds. Raises TokenizerError for any other model."""
    return _KINDS[_model(path, _read(path))["type"]][0]


def cuts_at_pieces(path: Path) -> tuple[str, ...]:
    """Ordinary pieces at which transformers cuts a text before it looks for others; empty for files of the hub."""
    tokens = _read(path).get("added_tokens") or ()
    return tuple(str(t.get("content")) for t in tokens if isinstance(t, dict) and t.get("special") is False)


def vocabulary_name(path: Path) -> str:
    """What the vocabulary file is called in a bundle."""
    if path.name != FILE:
        return path.name
    return _KINDS[_model(path, _read(path))["type"]][1]


def vocabulary_bytes(path: Path) -> bytes:
    """The vocabulary file's content; for a tokenizer.json, the spiece.model or vocab.txt it stands for.

    Raises OSError when it cannot be read, TokenizerError for a tokenizer.json that holds neither.
    """
    if path.name != FILE:
        return path.read_bytes()
    data = _read(path)
    model = _model(path, data)
    try:
        if model["type"] == "WordPiece":
            return "".join(f"{token}\n" for token in _in_order(model["vocab"])).encode("utf-8")
        return _spiece(data, model)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise TokenizerError(
            f"{path}: its vocabulary cannot be read ({error!r}): add the model's spiece.model"
        ) from None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path}: not valid JSON ({error}): fetch the file again") from None
    return data if isinstance(data, dict) else {}


def _model(path: Path, data: Mapping[str, Any]) -> Mapping[str, Any]:
    model = data.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind not in _KINDS:
        raise TokenizerError(
            f"{path}: holds a {kind or 'nameless'} model, an ALBERT's is {' or '.join(_KINDS)}: "
            "this is another model's tokenizer"
        )
    return model


def _in_order(vocabulary: Mapping[str, int]) -> list[str]:
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError("ids are not 0, 1, …")
    return tokens


# -- SentencePiece ----------------------------------------------------------------------------------------------------


def _spiece(data: Mapping[str, Any], model: Mapping[str, Any]) -> bytes:
    """A serialised sentencepiece ModelProto: unigram, with ALBERT's normaliser settings."""
    from sentencepiece import sentencepiece_model_pb2

    schema: Any = sentencepiece_model_pb2  # its classes are made when it is imported
    proto = schema.ModelProto()
    scores = [float(score) for _, score in model["vocab"]]
    lowest = min(score for (piece, score) in model["vocab"] if not _ends_in_number_comma(piece))
    types = _types(data, model)
    for i, (piece, _) in enumerate(model["vocab"]):
        penalised = _ends_in_number_comma(piece) and scores[i] < lowest
        score = scores[i] + _COMMA_PENALTY if penalised else scores[i]
        proto.pieces.add(piece=piece, score=score, type=types[i])
    proto.trainer_spec.model_type = schema.TrainerSpec.UNIGRAM
    proto.trainer_spec.vocab_size = len(scores)
    proto.trainer_spec.unk_id = int(model["unk_id"])
    proto.normalizer_spec.name = "nmt_nfkc"
    proto.normalizer_spec.precompiled_charsmap = base64.b64decode(_character_map(data))
    for name in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        setattr(proto.normalizer_spec, name, True)
    return proto.SerializeToString(deterministic=True)


def _types(data: Mapping[str, Any], model: Mapping[str, Any]) -> dict[int, int]:
    """Piece types by id: added tokens are control pieces when special, else user-defined, as transformers made them."""
    types = dict.fromkeys(range(len(model["vocab"])), _NORMAL)
    for token in data.get("added_tokens") or ():
        if token["id"] in types:
            types[token["id"]] = _CONTROL if token["special"] else _USER_DEFINED
    types[int(model["unk_id"])] = _UNKNOWN
    return types


def _character_map(data: Mapping[str, Any]) -> str:
    """The precompiled map in base64, "" where the file has none."""
    return next(
        (step["precompiled_charsmap"] for step in _steps(data.get("normalizer")) if "precompiled_charsmap" in step), ""
    )


def _steps(normalizer: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(normalizer, dict):
        yield normalizer
        for step in normalizer.get("normalizers") or ():
            yield from _steps(step)


def _ends_in_number_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()
