"""Train a SentencePiece vocabulary for an ALBERT: `python -m edge_albert.train_vocab corpus/ --vocab-size 8000 …`.

The settings are those of Google's 30k-clean.model, read from the file itself and from google-research/albert's README:
unigram, nmt_nfkc, character coverage 0.99995, ids 0 <pad>, 1 <unk>, 2 [CLS], 3 [SEP], 4 [MASK], then the eight
user-defined pieces. The text goes through ALBERT's own rules first (text_rules.py), as it will when the model is used.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator
from pathlib import Path

import sentencepiece

from edge_albert.cli import leave_without, run_command

try:
    from edge_albert.atomic import atomic_folder
    from edge_albert.errors import EdgeAlbertError
    from edge_albert.progress import Progress
    from edge_albert.tokenization.text_rules import albert_table, clean_albert
    from edge_albert.tokenizer import load_tokenizer
    from edge_albert.training.pretraining.corpus import Corpus
except ModuleNotFoundError as error:
    leave_without(error, __name__)

CONTROL_SYMBOLS = ("[CLS]", "[SEP]", "[MASK]")
USER_DEFINED_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")
CHARACTER_COVERAGE = 0.99995

_EPILOG = """\
example:
  python -m edge_albert.train_vocab corpus/ --vocab-size 8000 --output vocab-8k
then:
  python -m edge_albert.pretrain corpus/ --tokenizer vocab-8k --preset mini --steps 10000 --output runs/mini

The folder holds spiece.model and tokenizer_config.json, which transformers reads too. The same corpus, sizes and
sentencepiece version give the same vocabulary.
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m edge_albert.train_vocab",
        description="Train a SentencePiece vocabulary with ALBERT's special pieces and settings from raw text.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("corpus", nargs="+", type=Path, help=".txt, .jsonl, either with .xz, or a folder of them")
    out.add_argument("--text-field", default="text", help="field of a JSONL row that holds its text (default: text)")
    out.add_argument("--vocab-size", type=int, default=30000, metavar="N", help="pieces, special ones included (30000)")
    out.add_argument(
        "--sample", type=int, default=1_000_000, metavar="N", help="sentences drawn from the corpus (1000000)"
    )
    out.add_argument("--keep-case", action="store_true", help="do not lower-case")
    out.add_argument("--keep-accents", action="store_true", help="do not strip accents")
    out.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder to write")
    out.add_argument("--force", action="store_true", help="replace the output folder if it exists")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    corpus = Corpus(options.corpus, text_field=options.text_field)
    rules = {"do_lower_case": not options.keep_case, "keep_accents": options.keep_accents}
    with atomic_folder(options.output, force=options.force) as folder:
        model = train_spiece(cleaned_sentences(corpus, **rules), options.vocab_size, sample=options.sample)
        (folder / "spiece.model").write_bytes(model)
        config = {"tokenizer_class": "AlbertTokenizer", **rules, "remove_space": True, "model_max_length": 512}
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        pieces = load_tokenizer(folder).vocab_size
    print(f"{options.output}: {pieces} pieces")
    return 0


def cleaned_sentences(corpus: Corpus, *, do_lower_case: bool, keep_accents: bool) -> Iterator[str]:
    """Every sentence as the tokenizer will hand it to SentencePiece; shows how much of the corpus has been read."""
    table = albert_table(do_lower_case=do_lower_case, keep_accents=keep_accents)
    with Progress(corpus.total_bytes, "reading") as bar:
        for document in corpus.documents():
            for sentence in document:
                yield clean_albert(sentence, table, remove_space=True)
            bar.update(corpus.bytes_read - bar.done)


def train_spiece(sentences: Iterator[str], vocab_size: int, *, sample: int = 1_000_000) -> bytes:
    """The content of a spiece.model of `vocab_size` pieces, trained on at most `sample` of the sentences.

    Raises EdgeAlbertError when the text has too few different words for so many pieces, or none at all.
    """
    model = io.BytesIO()
    sentencepiece.set_random_generator_seed(0)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            character_coverage=CHARACTER_COVERAGE,
            normalization_rule_name="nmt_nfkc",
            input_sentence_size=sample,
            shuffle_input_sentence=True,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=list(CONTROL_SYMBOLS),
            user_defined_symbols=list(USER_DEFINED_SYMBOLS),
            num_threads=1,  # the sums of several threads would not come out the same twice
            minloglevel=1,
        )
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise EdgeAlbertError(
            f"no vocabulary of {vocab_size} pieces came of this text ({reason}): lower --vocab-size or add text"
        ) from None
    return model.getvalue()


if __name__ == "__main__":
    run_command(main)
