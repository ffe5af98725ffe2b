"""The tokenizer as its users meet it: one text and pairs, special tokens, folders and rules, bad input."""

from __future__ import annotations

import json
import pickle
import random
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tiny_spiece import TINY_VOCAB_SIZE, tiny_corpus, train_tiny_spiece
from tokenizer_lines import generated_lines
from tokenizer_references import fast_albert

from edge_albert.errors import TokenizerError
from edge_albert.tokenizer import Tokenizer, load_tokenizer

TOKENS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny_spiece(tmp_path_factory.mktemp("tiny")).parent


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


def folder_with(tmp_path: Path, folder: Path, config: Any = None, **more: Any) -> Path:
    """A model folder with the tiny vocabulary, a tokenizer_config.json and other JSON files."""
    (tmp_path / "spiece.model").write_bytes((folder / "spiece.model").read_bytes())
    for name, content in {"tokenizer_config": config, **more}.items():
        if content is not None:
            (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return tmp_path


# -- what comes out ----------------------------------------------------------------------------------------------------


def test_a_vocabulary_and_its_special_tokens(tiny: Tokenizer) -> None:
    assert tiny.vocab_size == TINY_VOCAB_SIZE
    assert (tiny.pad_id, tiny.unk_id, tiny.cls_id, tiny.sep_id, tiny.mask_id) == (0, 1, 2, 3, 4)
    assert tiny.special_ids == {0, 1, 2, 3, 4}
    assert [tiny.id_to_token(i) for i in range(5)] == list(TOKENS)
    assert [tiny.token_to_id(tiny.id_to_token(i)) for i in range(TINY_VOCAB_SIZE)] == list(range(TINY_VOCAB_SIZE))
    assert tiny.token_to_id("no such piece") == tiny.unk_id
    with pytest.raises(TokenizerError, match="id 176 is not in the vocabulary"):
        tiny.id_to_token(TINY_VOCAB_SIZE)
    with pytest.raises(TokenizerError, match="id -1 is not in the vocabulary"):
        tiny.id_to_token(-1)


def test_one_text(tiny: Tokenizer) -> None:
    encoding = tiny.encode("The baker opened.")
    n = len(encoding) - 2
    assert encoding.input_ids == [2, *tiny.ids("The baker opened."), 3]
    assert encoding.token_type_ids == [0] * (n + 2)
    assert encoding.sequence_ids == [None, *[0] * n, None]
    assert encoding.special_tokens_mask == [1, *[0] * n, 1]
    assert encoding.offsets[0] == encoding.offsets[-1] == (0, 0)
    assert tiny.num_special_tokens(pair=False) == 2


def test_a_pair(tiny: Tokenizer) -> None:
    a, b = tiny.ids("the door"), tiny.ids("two letters from london")
    encoding = tiny.encode("the door", "two letters from london")
    assert encoding.input_ids == [2, *a, 3, *b, 3]
    assert encoding.token_type_ids == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert encoding.sequence_ids == [None, *[0] * len(a), None, *[1] * len(b), None]
    assert encoding.offsets[1][0] == encoding.offsets[len(a) + 2][0] == 0  # each counts in its own text
    assert (encoding.offsets[len(a)][1], encoding.offsets[-2][1]) == (8, 23)
    assert tiny.num_special_tokens(pair=True) == 3


@pytest.mark.parametrize("text", ["", " ", "\t\n", "\u200b", "\x01", "\u0301"])
def test_nothing_to_say(tiny: Tokenizer, text: str) -> None:
    assert tiny.encode(text).input_ids == [2, 3]
    assert tiny.encode(text, text).input_ids == [2, 3, 3]
    assert tiny.tokenize(text) == tiny.ids(text) == []
    assert tiny.encode_windows(text) == [tiny.encode(text)]


def test_only_unknown_characters(tiny: Tokenizer) -> None:
    encoding = tiny.encode("漢字 \U0001f600")
    assert set(encoding.input_ids[1:-1]) == {tiny.unk_id, tiny.token_to_id("▁")}


def test_lone_surrogates_count_as_the_replacement_character(tiny: Tokenizer) -> None:
    """They cannot be encoded as UTF-8; transformers fails on them. (nmt_nfkc then makes a space of U+FFFD.)"""
    text = "the \ud83d baker \udc00\udc00"
    assert tiny.encode(text) == tiny.encode("the \ufffd baker \ufffd\ufffd")
    assert tiny.ids(text) == tiny.encode(text).input_ids[1:-1]
    assert tiny.encode(text).offsets[-2][1] == len("the \ufffd baker")


@pytest.mark.parametrize("text", [b"the baker", 7, None, ["the"]])
def test_a_text_is_a_str(tiny: Tokenizer, text: Any) -> None:
    for call in (tiny.encode, tiny.encode_windows, tiny.tokenize, tiny.ids):
        with pytest.raises(TypeError, match="a text must be str, not "):
            call(text)


def test_decode_equals_sentencepiece(tiny: Tokenizer, folder: Path) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    for line in tiny_corpus()[:200]:
        encoding = tiny.encode(line)
        assert tiny.decode(encoding.input_ids) == processor.decode(encoding.input_ids) == line
    assert tiny.decode(tiny.encode("the 漢 door").input_ids) == "the <unk> door"
    assert tiny.decode(tiny.encode("the door").input_ids, skip_special_tokens=False) == "[CLS] the door[SEP]"


def test_it_survives_pickling(tiny: Tokenizer) -> None:
    """Data loaders with worker processes send it."""
    again = pickle.loads(pickle.dumps(tiny))
    for line in generated_lines(50, seed=10):
        assert again.encode(line) == tiny.encode(line)


# -- special tokens in a text ------------------------------------------------------------------------------------------


def test_special_tokens_in_a_text_are_text(tiny: Tokenizer, folder: Path, tmp_path: Path) -> None:
    """No text yields an id of [CLS], [SEP], [MASK] or <pad>, whatever its surroundings and the settings."""
    cased = load_tokenizer(folder_with(tmp_path, folder, {"do_lower_case": False}))
    forbidden = tiny.special_ids - {tiny.unk_id}
    rng = random.Random(11)
    lines = generated_lines(1000, seed=11)
    for line in lines:
        at, token = int(rng.random() * (len(line) + 1)), TOKENS[int(rng.random() * 5)]
        for text in (line[:at] + token + line[at:], f"{line} {token} {token}"):
            for tokenizer in (tiny, cased):
                assert not forbidden & set(tokenizer.ids(text))
                assert not forbidden & set(tokenizer.encode(text, max_length=None).input_ids[1:-1])


def test_an_unknown_run_spelt_like_a_special_token_stays_unknown(folder: Path, tmp_path: Path) -> None:
    """The trap: SentencePiece gives the run as the string "[SEP]", whose id by name is the separator's."""
    cased = load_tokenizer(folder_with(tmp_path, folder, {"do_lower_case": False}))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(cased.path))
    assert cased.tokenize("[SEP]") == processor.encode("[SEP]", out_type=str) == ["▁", "[SEP]"]
    assert processor.piece_to_id("[SEP]") == cased.sep_id
    assert cased.ids("[SEP]") == [cased.token_to_id("▁"), cased.unk_id]


def test_special_tokens_can_be_allowed(tiny: Tokenizer) -> None:
    text = "[MASK] door[SEP]  <pad>"
    encoding = tiny.encode(text, allow_special=True)
    door = tiny.ids("door")
    assert encoding.input_ids == [2, 4, *door, 3, 0, 3]
    assert encoding.offsets[1] == (0, 6)
    assert [text[slice(*span)] for span in encoding.offsets[-3:-1]] == ["[SEP]", "<pad>"]
    assert (encoding.offsets[2][0], encoding.offsets[-4][1]) == (7, 11)
    assert encoding.special_tokens_mask == [1, *[0] * (len(door) + 3), 1]
    assert tiny.encode("[mask]", allow_special=True) == tiny.encode("[mask]")
    assert tiny.encode("the door", allow_special=True) == tiny.encode("the door")


def test_allowed_special_tokens_equal_transformers(genuine_spiece: Path) -> None:
    """ids of transformers 4.57.1's slow AlbertTokenizer, recorded; transformers 5 gives the same."""
    tokenizer, fast = load_tokenizer(genuine_spiece.parent), fast_albert(genuine_spiece)
    recorded = {
        "[MASK] is [SEP] the <pad> x[CLS]y": [4, 25, 3, 14, 0, 993, 2, 13, 93],
        "a <unk> b": [21, 1, 334],
        "[mask] [sep]": [636, 23265, 500, 636, 18, 3492, 500],
        "[SEP][SEP]  [MASK]hello[MASK] 9,": [3, 3, 4, 10975, 4, 561, 15],
        " [CLS] x ": [2, 993],
        "[[SEP]]": [636, 3, 13, 500],
    }
    for text, ids in recorded.items():
        assert tokenizer.encode(text, allow_special=True).input_ids == [2, *ids, 3]
        assert fast(text)["input_ids"] == [2, *ids, 3]


# -- folders and rules -------------------------------------------------------------------------------------------------


def test_rules_round_trip(tiny: Tokenizer, folder: Path) -> None:
    rules = json.loads(json.dumps(tiny.rules))
    assert rules == {
        "kind": "sentencepiece", "file": "spiece.model", "do_lower_case": True, "keep_accents": False,
        "remove_space": True, "sentencepiece_version": sentencepiece.__version__, "model_max_length": None,
        "special_tokens": {
            role: {"token": token, "id": i}
            for i, (role, token) in enumerate(zip(("pad", "unk", "cls", "sep", "mask"), TOKENS, strict=True))
        },
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load_tokenizer(folder, rules)
    assert again.rules == tiny.rules
    assert again.path == folder / "spiece.model"
    assert again.encode("the baker") == tiny.encode("the baker")


def test_settings_come_from_the_folder(folder: Path, tmp_path: Path) -> None:
    config = {"do_lower_case": False, "keep_accents": True, "remove_space": None, "model_max_length": 128}
    tokenizer = load_tokenizer(folder_with(tmp_path, folder, config))
    assert tokenizer.model_max_length == 128
    assert [tokenizer.rules[key] for key in ("do_lower_case", "keep_accents", "remove_space")] == [False, True, True]
    assert tokenizer.tokenize("Thé") == ["▁", "T", "h", "é"]
    assert Tokenizer.from_rules(tmp_path, tokenizer.rules).tokenize("Thé") == ["▁", "T", "h", "é"]


def test_no_limit_is_none(folder: Path, tmp_path: Path) -> None:
    """transformers writes int(1e30) where a model has no limit."""
    assert load_tokenizer(folder_with(tmp_path, folder, {"model_max_length": int(1e30)})).model_max_length is None


@pytest.mark.parametrize("where", ["tokenizer_config", "special_tokens_map"])
def test_special_tokens_may_have_other_names(folder: Path, tmp_path: Path, where: str) -> None:
    """As a string or as transformers' AddedToken; here the roles of [CLS] and [SEP] are swapped."""
    names = {"cls_token": {"content": "[SEP]", "lstrip": False}, "sep_token": "[CLS]"}
    tokenizer = load_tokenizer(folder_with(tmp_path, folder, **{"config" if "config" in where else where: names}))
    assert tokenizer.encode("").input_ids == [3, 2]
    assert Tokenizer.from_rules(tmp_path, tokenizer.rules).encode("").input_ids == [3, 2]


def test_googles_file_names_are_found(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "30k-clean.model").write_bytes((folder / "spiece.model").read_bytes())
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.path == tmp_path / "assets" / "30k-clean.model"
    assert tokenizer.rules["file"] == "30k-clean.model"


def test_two_vocabularies(folder: Path, tmp_path: Path) -> None:
    """spiece.model, unless the configuration names BERT's tokenizer."""
    folder_with(tmp_path, folder)
    (tmp_path / "vocab.txt").write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]")))
    assert load_tokenizer(tmp_path).rules["kind"] == "sentencepiece"
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    assert load_tokenizer(tmp_path).rules["kind"] == "wordpiece"


def test_another_version_of_sentencepiece_is_a_warning(tiny: Tokenizer, folder: Path) -> None:
    with pytest.warns(UserWarning, match=r"made with sentencepiece 0\.1\.99, this is .*a few texts in 10,000"):
        again = Tokenizer.from_rules(folder, {**tiny.rules, "sentencepiece_version": "0.1.99"})
    assert again.encode("the baker") == tiny.encode("the baker")


def test_a_vocabulary_without_a_mask(tmp_path: Path) -> None:
    """Enough to run a model; only pre-training masks."""
    (tmp_path / "vocab.txt").write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the")))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("the").input_ids == [2, 4, 3]
    assert Tokenizer.from_rules(tmp_path, tokenizer.rules).rules == tokenizer.rules
    with pytest.raises(TokenizerError, match="has no mask token"):
        _ = tokenizer.mask_id


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(
        TokenizerError, match=r"no tokenizer \(looked for spiece\.model, .*vocab\.txt.*\): add the model's"
    ):
        load_tokenizer(tmp_path)
    with pytest.raises(TokenizerError, match="no tokenizer"):
        load_tokenizer(tmp_path / "nowhere")


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "pointer", "flipped", "piece"])
def test_a_damaged_model_names_the_file(folder: Path, tmp_path: Path, damage: str) -> None:
    whole = (folder / "spiece.model").read_bytes()
    content = {
        "empty": b"",
        "cut": whole[: len(whole) // 2 + 1],
        "text": b"the baker opened the door\n",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 760289\n",
        "flipped": bytes([whole[0] ^ 0xFF]) + whole[1:],
        "piece": whole.replace("▁help".encode(), b"\xe2\x96\xffhelp", 1),  # no UTF-8
    }[damage]
    (tmp_path / "spiece.model").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"spiece\.model: not a SentencePiece model"):
        load_tokenizer(tmp_path)


def test_models_that_are_not_alberts(tmp_path: Path) -> None:
    """Without ALBERT's special pieces; with byte fallback."""
    options: dict[str, Any] = {"vocab_size": 100, "minloglevel": 2, "hard_vocab_limit": False}
    for more in ({}, {"byte_fallback": True, "vocab_size": 400}):
        with (tmp_path / "spiece.model").open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(tiny_corpus()), model_writer=file, **{**options, **more}
            )
        message = "a model with byte fallback" if more else r"lacks the special token <pad>, \[CLS\], \[SEP\]"
        with pytest.raises(TokenizerError, match=message):
            load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"do_lower_case": "yes"}, "do_lower_case is 'yes': it must be true or false"),
        ({"keep_accents": 1}, "keep_accents is 1: it must be true or false"),
        ({"model_max_length": "long"}, "model_max_length is 'long': it must be a number of tokens"),
        ({"model_max_length": 0}, "model_max_length is 0: it must be a number of tokens"),
        ({"cls_token": ["[CLS]"]}, r"cls_token is \['\[CLS\]'\]: it must be a string"),
        ({"cls_token": "<s>"}, "lacks the special token <s>"),
        ({"unk_token": "<pad>"}, "its unknown piece is '<unk>', not '<pad>'"),
        (
            {"added_tokens_decoder": {"176": {"content": "<new>"}}},
            r"added beyond the vocabulary of 176: '<new>' \(176\)",
        ),
        ({"added_tokens_decoder": ["<new>"]}, "added_tokens_decoder must map ids to tokens"),
        (["do_lower_case"], "expected a JSON object, found list"),
    ],
)
def test_bad_settings_name_file_and_field(folder: Path, tmp_path: Path, config: Any, message: str) -> None:
    folder_with(tmp_path, folder, config)
    with pytest.raises(TokenizerError, match=f"^{re.escape(str(tmp_path))}.*{message}"):
        load_tokenizer(tmp_path)


def test_broken_json_and_added_tokens(folder: Path, tmp_path: Path) -> None:
    folder_with(tmp_path, folder, added_tokens={"<new>": 500})
    with pytest.raises(TokenizerError, match=r"added beyond the vocabulary of 176: '<new>' \(500\)"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: not valid JSON"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "bpe"}, "kind 'bpe' is not one of sentencepiece, wordpiece"),
        ({"kind": ["bpe"]}, r"kind \['bpe'\] is not one of"),
        ({"file": "other.model"}, r"other\.model: missing"),
        ({"file": "../spiece.model"}, r"file is '\.\./spiece\.model': it must be the bare name"),
        ({"file": ""}, "file is '': it must be the bare name"),
        ({"file": None}, "file is None: it must be the bare name"),
        ({"do_lower_case": "no"}, "do_lower_case is 'no': it must be true or false"),
        ({"special_tokens": None}, "special_tokens must map each role to a token and its id"),
        ({"special_tokens": {"pad": "<pad>"}}, "special_tokens must map each role to a token and its id"),
        ({"special_tokens": {"pad": {"token": "<pad>", "id": 0}}}, "special_tokens lacks unk, cls, sep"),
        ({"model_max_length": -1}, "model_max_length is -1"),
    ],
)
def test_bad_rules(tiny: Tokenizer, folder: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_rules(folder, {**tiny.rules, **change})


def test_rules_of_another_vocabulary(tiny: Tokenizer, folder: Path) -> None:
    special = {**tiny.rules["special_tokens"], "sep": {"token": "[SEP]", "id": 9}}
    with pytest.raises(TokenizerError, match=r"'sep': 3.* say .*'sep': 9.*the file belongs to another model"):
        Tokenizer.from_rules(folder, {**tiny.rules, "special_tokens": special})
