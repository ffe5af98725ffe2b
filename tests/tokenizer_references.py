"""What tokenizers are compared with: the original rules written out, and transformers 5's fast tokenizer.

`slow_pieces` is ALBERT's tokenizer as google-research/albert and transformers 4's slow one define it, said as directly
as possible: whole strings, no tables, no blocks, no offsets. `fast_albert` builds transformers 5's `AlbertTokenizer`
from a SentencePiece model as the model hub's tokenizer.json files hold it (and not as transformers 5 converts a
spiece.model, see edge_albert/tokenization/spiece.py).
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sentencepiece


def slow_text(text: str, *, do_lower_case: bool = True, keep_accents: bool = False, remove_space: bool = True) -> str:
    """The text as SentencePiece gets it."""
    if do_lower_case:
        text = "".join(char.lower() for char in text)
    if remove_space:
        text = " ".join(text.strip().split())
    text = text.replace("``", '"').replace("''", '"')
    if not keep_accents:
        text = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return text.lower() if do_lower_case else text


def slow_pieces(processor: sentencepiece.SentencePieceProcessor, text: str, **options: bool) -> list[str]:
    """SentencePiece, then the digit-comma rule."""
    result: list[str] = []
    for piece in processor.encode(slow_text(text, **options), out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            parts = processor.encode(piece[:-1].replace("▁", ""), out_type=str)
            if piece[0] != "▁" and parts[0][0] == "▁":
                parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
            result += [*parts, ","]
        else:
            result.append(piece)
    return result


def slow_ids(processor: sentencepiece.SentencePieceProcessor, text: str, **options: bool) -> list[int]:
    return [processor.piece_to_id(piece) for piece in slow_pieces(processor, text, **options)]


def fast_albert(model: Path, **options: Any) -> Any:
    """transformers 5's AlbertTokenizer, the digit-comma rule as a penalty on scores; skips where it cannot be had."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    pytest.importorskip("google.protobuf")
    from sentencepiece import sentencepiece_model_pb2

    proto: Any = getattr(sentencepiece_model_pb2, "ModelProto")()  # noqa: B009 (made at import, mypy cannot see it)
    proto.ParseFromString(model.read_bytes())
    vocab = [(piece.piece, piece.score - 100 * _ends_in_digit_comma(piece.piece)) for piece in proto.pieces]
    return transformers.AlbertTokenizer(
        vocab=vocab, _spm_precompiled_charsmap=proto.normalizer_spec.precompiled_charsmap, **options
    )


def _ends_in_digit_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def score_of(processor: sentencepiece.SentencePieceProcessor, ids: list[int]) -> float:
    """What SentencePiece maximises: the sum of the pieces' log probabilities."""
    return sum(processor.get_score(i) for i in ids)
