"""SentencePiece with ALBERT's rules: text ► pieces of a spiece.model, each with its place in the original text.

**The reference** is the tokenizer ALBERT was pre-trained with: google-research/albert `tokenization.py`, which became
transformers' *slow* `AlbertTokenizer` (last in 4.57; `keep_accents` and the paired quotes are transformers' additions).
Ids equal those of transformers 4.57.1 on every line tested. Its rules, in order:

1. whitespace collapsed (`remove_space`), `` and '' become ", NFKD and combining marks dropped (unless `keep_accents`),
   lower case (`do_lower_case`);
2. SentencePiece: its own normalisation (nmt_nfkc), then the best segmentation;
3. the digit-comma rule: a piece that ends in a digit and a comma ("▁9,") is segmented again without the comma.

**transformers 5** has only the tokenizers-backed ("fast") `AlbertTokenizer`. It differs

- when made from a spiece.model alone: no rule 3, and the text is cut at ALBERT's eight user-defined pieces
  ( ) " - . – £ € with a new word after each: "a-b" is ▁a - ▁b where pre-training had ▁a - b. Of 89,877 lines of SST-2,
  SNIPS, SMS and SQuAD 24,849 differ;
- when made from a tokenizer.json as the model hub has them (rule 3 as a penalty of 100 on such pieces' scores, nothing
  cut): ties between equally good segmentations (1 of those lines); marks without a combining class, such as U+FE0F and
  U+20E3 in emoji, are dropped there and unknown characters here; U+000B and U+001C to U+001F are no whitespace there.

tests/test_tokenizer_reference.py counts each of these.

**Special tokens in a text are text.** Pieces of type control ([CLS], [SEP], [MASK], <pad>) never come out of `split`,
whatever the text says, not even when a vocabulary lacks "[" and an unknown run happens to be spelt "[SEP]".

**Long texts** are cut at spaces into blocks of about 65,000 characters, which bounds SentencePiece's memory. Words do
not interact in a vocabulary whose pieces have "▁" only in front (checked at load), and no rule of nmt_nfkc spans a
space, so a cut changes nothing but the float32 rounding of SentencePiece's running score: in 10 MB of English prose 27
of 1,806,239 words, each a choice between segmentations that score the same within 0.01, differ from one run's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from edge_albert.errors import TokenizerError
from edge_albert.tokenization.pieces import Pieces, SpecialTokens
from edge_albert.tokenization.text_rules import CleanText, albert_table, clean_albert, replace_surrogates, trace_albert
from edge_albert.tokenization.tokenizer_json import vocabulary_bytes

SPACE = "▁"
BLOCK_LENGTH = 65536  # characters; see "Long texts" above


class SpieceModel:
    """A spiece.model and the rules around it.

    `special_tokens` maps the roles pad, unk, cls, sep and (optional) mask to pieces of the file. `tokens` has every
    piece in the order of the ids. Raises TokenizerError if the file is not a SentencePiece model or lacks one of them.
    """

    kind = "sentencepiece"

    def __init__(
        self,
        path: Path,
        special_tokens: Mapping[str, str],
        *,
        do_lower_case: bool = True,
        keep_accents: bool = False,
        remove_space: bool = True,
    ) -> None:
        self.path = path
        self.options: dict[str, Any] = {
            "do_lower_case": do_lower_case, "keep_accents": keep_accents, "remove_space": remove_space,
        }  # fmt: skip
        self._table = albert_table(do_lower_case=do_lower_case, keep_accents=keep_accents)
        self._remove_space = remove_space
        self._processor, self.tokens = _load(path)
        self.special = SpecialTokens.find(self.tokens, special_tokens, path)
        self._unk_id = self.special.ids["unk"]
        if self._unk_id != self._processor.unk_id():
            unknown = self.tokens[self._processor.unk_id()]
            raise TokenizerError(f"{path}: its unknown piece is {unknown!r}, not {self.special.names['unk']!r}")
        forbidden = set(self.special.ids.values())
        self._ids = {token: i for i, token in enumerate(self.tokens) if i not in forbidden and self._is_text(i)}
        self._separable = self._words_are_separable()

    def tokenize(self, text: str) -> list[str]:
        """The pieces as text; an unknown run of characters stands for itself, as in the slow reference."""
        cleaned = self._clean(replace_surrogates(text))
        return [piece for _, block in self._blocks(cleaned) for piece, _ in self._pieces_of(block)]

    def ids(self, text: str) -> list[int]:
        """The ids alone: `split` without the work of finding places."""
        get, unk = self._ids.get, self._unk_id
        return [get(piece, unk) for piece in self.tokenize(text)]

    def split(self, text: str) -> Pieces:
        """Ids and places in `text`, without special tokens. Lone surrogates count as U+FFFD."""
        text = replace_surrogates(text)
        cleaned = self._clean(text)
        trace = trace_albert(text, cleaned, self._table, remove_space=self._remove_space)
        return Pieces.concatenate([self._split_block(at, block, trace) for at, block in self._blocks(cleaned)])

    def decode(self, tokens: list[str]) -> str:
        """Pieces as text again: "▁" is a space."""
        return "".join(tokens).replace(SPACE, " ").lstrip(" ")

    # -- the steps ---------------------------------------------------------------------------------------------------

    def _clean(self, text: str) -> str:
        return clean_albert(text, self._table, remove_space=self._remove_space)

    def _blocks(self, cleaned: str) -> Iterator[tuple[int, str]]:
        """(where it begins, block), cut at spaces; a word longer than a block stays whole."""
        start = 0
        while self._separable and len(cleaned) - start > BLOCK_LENGTH:
            cut = cleaned.rfind(" ", start + 1, start + BLOCK_LENGTH)
            if cut < 0:
                cut = cleaned.find(" ", start + BLOCK_LENGTH)
            if cut < 0:
                break
            yield start, cleaned[start:cut]
            start = cut
        yield start, cleaned[start:]

    def _pieces_of(self, block: str) -> Iterator[tuple[str, int]]:
        """(piece, how many characters of the normalised block it covers), the digit-comma rule applied."""
        for piece in self._processor.encode(block, out_type=str):
            if piece[-1] == "," and len(piece) > 1 and piece[-2].isdigit():
                parts = self._resplit(piece)
                lost = len(piece) - sum(map(len, parts))  # a "▁" that a model without dummy prefix does not give back
                yield parts[0], len(parts[0]) + lost
                yield from ((part, len(part)) for part in parts[1:])
            else:
                yield piece, len(piece)

    def _resplit(self, piece: str) -> list[str]:
        """The digit-comma rule, as google-research/albert `encode_pieces`: "▁92000," ► "▁9" "2000" ","."""
        parts = self._processor.encode(piece[:-1].replace(SPACE, ""), out_type=str)
        if piece[0] != SPACE and parts[0][0] == SPACE:
            parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
        return [*parts, ","]

    def _split_block(self, at: int, block: str, trace: CleanText) -> Pieces:
        pieces = list(self._pieces_of(block))
        ids = np.array([self._ids.get(piece, self._unk_id) for piece, _ in pieces], dtype=np.int32)
        # normalised character j of the block comes from block[places[j] : the next larger place]
        places = np.array(self._processor.normalize(block, with_offsets=True)[1], dtype=np.int64)
        # a piece's text begins after its "▁"; a lone "▁" is empty, before the character that follows
        visible = np.array([length - (piece[0] == SPACE) for piece, length in pieces], dtype=np.int64)
        stops = np.cumsum([length for _, length in pieces], dtype=np.int64)  # (n,) into the normalised block
        begins = stops - visible
        first = places[begins]
        last = places[stops - 1]
        after = places[np.minimum(np.searchsorted(places, last, side="right"), len(places) - 1)]
        after = np.maximum(after, last + 1)
        starts = trace.starts[at + first]
        ends = np.where(begins < stops, trace.ends[at + after - 1], starts)
        return Pieces(ids, starts, ends)

    # -- what the file says ------------------------------------------------------------------------------------------

    def _is_text(self, i: int) -> bool:
        processor = self._processor
        return not (processor.is_control(i) or processor.is_unused(i) or processor.is_unknown(i))

    def _words_are_separable(self) -> bool:
        inner = any(SPACE in token[1:] for token in self._ids)
        return not inner and SPACE in self._ids and self._processor.normalize("a  b ") == f"{SPACE}a{SPACE}b"


def _load(path: Path) -> tuple[sentencepiece.SentencePieceProcessor, list[str]]:
    """The model and its pieces in the order of the ids."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(vocabulary_bytes(path))
        tokens = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read ({error.strerror})") from None
    except (RuntimeError, ValueError):  # no model at all; pieces that are not UTF-8
        raise TokenizerError(
            f"{path}: not a SentencePiece model (damaged, or a Git LFS pointer): fetch the file again"
        ) from None
    if any(processor.is_byte(i) for i in range(len(tokens))):
        raise TokenizerError(f"{path}: a model with byte fallback; ALBERT has none, this is another model's tokenizer")
    return processor, tokens
