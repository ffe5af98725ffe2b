"""train_vocab: the settings and special pieces of Google's genuine vocabulary, which transformers reads too."""

from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece
from pretrain_helpers import write_corpus

from edge_albert.errors import EdgeAlbertError
from edge_albert.tokenizer import load_tokenizer
from edge_albert.train_vocab import main


def model_of(path: Path):  # type: ignore[no-untyped-def]
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2", reason="protobuf is not installed")
    model = proto.ModelProto()
    model.ParseFromString(path.read_bytes())
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("vocab")
    corpus = write_corpus(base / "corpus.txt")
    corpus.write_text(corpus.read_text() + "\nCafé ZÜRICH ``quoted''.\n" * 50)
    assert main([str(corpus), "--vocab-size", "180", "--output", str(base / "out")]) == 0
    return base / "out"


def test_settings_are_those_of_the_genuine_model(folder: Path, genuine_spiece: Path) -> None:
    mine, theirs = model_of(folder / "spiece.model"), model_of(genuine_spiece)
    for field in ("model_type", "character_coverage", "pad_id", "unk_id", "bos_id", "eos_id", "control_symbols",
                  "user_defined_symbols", "unk_piece", "pad_piece"):  # fmt: skip
        assert getattr(mine.trainer_spec, field) == getattr(theirs.trainer_spec, field), field
    for field in ("name", "add_dummy_prefix", "remove_extra_whitespaces"):
        assert getattr(mine.normalizer_spec, field) == getattr(theirs.normalizer_spec, field), field
    special = [[(p.piece, p.type) for p in model.pieces if p.type not in (1, 6)] for model in (mine, theirs)]
    assert special[0] == special[1]
    assert [p.piece for p in mine.pieces[:13]] == [p.piece for p in theirs.pieces[:13]]
    assert len(mine.pieces) == 180


def test_the_text_goes_through_alberts_rules(folder: Path) -> None:
    """Lower case and no accents in training too, or those pieces would never be met again."""
    tokenizer = load_tokenizer(folder)
    pieces = [tokenizer.id_to_token(i) for i in range(5, tokenizer.vocab_size)]
    assert not any(char.isupper() or char in "éü`" for piece in pieces for char in piece)
    assert tokenizer.unk_id not in tokenizer.ids("Café ZÜRICH ``quoted''.")


def test_transformers_reads_the_folder(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    mine = load_tokenizer(folder)
    text = "The Baker paints the blue door in the morning"
    assert theirs(text)["input_ids"] == mine.encode(text).input_ids
    assert theirs.model_max_length == 512


def test_the_same_text_gives_the_same_vocabulary(folder: Path) -> None:
    again = folder.parent / "again"
    main([str(folder.parent / "corpus.txt"), "--vocab-size", "180", "--output", str(again)])
    assert (again / "spiece.model").read_bytes() == (folder / "spiece.model").read_bytes()


def test_case_and_accents_may_be_kept(folder: Path) -> None:
    cased = folder.parent / "cased"
    corpus = str(folder.parent / "corpus.txt")
    main([corpus, "--vocab-size", "180", "--keep-case", "--keep-accents", "--output", str(cased)])
    processor = sentencepiece.SentencePieceProcessor(model_file=str(cased / "spiece.model"))
    letters = set("".join(processor.id_to_piece(i) for i in range(5, 180)))
    assert {"é", "Z"} <= letters
    assert load_tokenizer(cased).tokenize("Café") != load_tokenizer(cased).tokenize("cafe")


@pytest.mark.parametrize("size", [3, 100_000])
def test_impossible_sizes_are_one_line(folder: Path, size: int) -> None:
    output = folder.parent / f"size{size}"
    with pytest.raises(EdgeAlbertError, match=f"no vocabulary of {size} pieces") as caught:
        main([str(folder.parent / "corpus.txt"), "--vocab-size", str(size), "--output", str(output)])
    assert "\n" not in str(caught.value)
    assert not output.exists()
