"""Finding and checking what describes a tokenizer: a model folder's files, or the rules a bundle stores.

A folder has one vocabulary file: spiece.model (Hugging Face's name) or 30k-clean.model (in Google's TF1 archives and
TF-Hub folders) for SentencePiece; vocab.txt or vocab_chinese.txt for WordPiece; or tokenizer.json alone, which holds
either (see tokenizer_json.py). Beside it there may be Hugging Face's tokenizer_config.json, special_tokens_map.json and
added_tokens.json. Every function raises TokenizerError with the file and the field that is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_albert.errors import TokenizerError
from edge_albert.tokenization import tokenizer_json

SPIECE_FILES = ("spiece.model", "30k-clean.model", "assets/30k-clean.model")
VOCAB_FILES = ("vocab.txt", "vocab_chinese.txt", "assets/vocab_chinese.txt")
_ROLES = ("pad", "unk", "cls", "sep", "mask")
_SPECIAL_TOKENS = {
    "sentencepiece": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
}
_OPTIONS = {
    "sentencepiece": {"do_lower_case": True, "keep_accents": False, "remove_space": True},
    "wordpiece": {"do_lower_case": True, "strip_accents": True, "tokenize_chinese_chars": True},
}


@dataclass(frozen=True)
class Description:
    """One tokenizer, described but not opened: `kind` is "sentencepiece" or "wordpiece"."""

    kind: str
    path: Path
    special_tokens: Mapping[str, str]
    options: Mapping[str, bool]
    model_max_length: int | None


def describe_folder(folder: Path) -> Description:
    """By the files of a model's folder. With both kinds of vocabulary, SentencePiece's is taken unless the config's
    tokenizer_class is BERT's."""
    config = {**_read_json(folder / "special_tokens_map.json"), **_read_json(folder / "tokenizer_config.json")}
    source = str(folder / "tokenizer_config.json")
    kind, path = _find_vocabulary(folder, str(config.get("tokenizer_class") or ""))
    names = dict(zip(_ROLES, _SPECIAL_TOKENS[kind], strict=True))
    names.update({role: _token_name(config, role, name, source) for role, name in names.items()})
    options = {key: _flag(config, key, default, source) for key, default in _OPTIONS[kind].items()}
    if kind == "wordpiece" and config.get("strip_accents") is None:
        options["strip_accents"] = options["do_lower_case"]  # BERT's rule where the file does not say
    return Description(kind, path, names, options, _max_length(config, source))


def added_tokens(folder: Path) -> dict[str, int]:
    """Tokens that `tokenizer.add_tokens` or the vocabulary itself put on record: text ► id."""
    source = folder / "tokenizer_config.json"
    try:
        decoder = _read_json(source).get("added_tokens_decoder") or {}
        listed = {str(entry["content"]): int(i) for i, entry in decoder.items()}
        return listed | {token: int(i) for token, i in _read_json(folder / "added_tokens.json").items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise TokenizerError(f"{source}: added_tokens_decoder must map ids to tokens with their content") from None


def describe_rules(folder: Path, rules: Mapping[str, Any]) -> tuple[Description, dict[str, int]]:
    """By the rules in a bundle; beside the description, the ids its special tokens must have."""
    source = "tokenizer rules"
    kind = rules.get("kind")
    if not isinstance(kind, str) or kind not in _OPTIONS:
        raise TokenizerError(f"{source}: kind {kind!r} is not one of {', '.join(_OPTIONS)}")
    name = rules.get("file")
    if not isinstance(name, str) or not name or Path(name).name != name:
        raise TokenizerError(f"{source}: file is {name!r}: it must be the bare name of a file in the folder")
    path = folder / name
    if not path.is_file():
        raise TokenizerError(f"{path}: missing: the {source} name it; restore the file")
    names, ids = _read_special_tokens(rules.get("special_tokens"), source)
    options = {key: _flag(rules, key, default, source) for key, default in _OPTIONS[kind].items()}
    return Description(kind, path, names, options, _max_length(rules, source)), ids


def _find_vocabulary(folder: Path, tokenizer_class: str) -> tuple[str, Path]:
    spiece = next((folder / name for name in SPIECE_FILES if (folder / name).is_file()), None)
    vocab = next((folder / name for name in VOCAB_FILES if (folder / name).is_file()), None)
    if vocab and (spiece is None or tokenizer_class.startswith("Bert")):
        return "wordpiece", vocab
    if spiece:
        return "sentencepiece", spiece
    if (folder / tokenizer_json.FILE).is_file():
        return tokenizer_json.kind_of(folder / tokenizer_json.FILE), folder / tokenizer_json.FILE
    looked_for = ", ".join((*SPIECE_FILES, *VOCAB_FILES, tokenizer_json.FILE))
    raise TokenizerError(f"{folder}: no tokenizer (looked for {looked_for}): add the model's spiece.model or vocab.txt")


def _read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON object file, {} if there is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise TokenizerError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(data, dict):
        raise TokenizerError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


def _flag(data: Mapping[str, Any], key: str, default: bool, source: str) -> bool:
    value = data.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise TokenizerError(f"{source}: {key} is {value!r}: it must be true or false")
    return value


def _max_length(data: Mapping[str, Any], source: str) -> int | None:
    """model_max_length in tokens; None where absent, or where transformers writes 1e30 for "no limit"."""
    value = data.get("model_max_length")
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 1:
        raise TokenizerError(f"{source}: model_max_length is {value!r}: it must be a number of tokens")
    return int(value) if value < 1e9 else None


def _token_name(config: Mapping[str, Any], role: str, default: str, source: str) -> str:
    value = config.get(f"{role}_token")
    name = value.get("content") if isinstance(value, Mapping) else value
    if name is None:
        return default
    if not isinstance(name, str) or not name:
        raise TokenizerError(f"{source}: {role}_token is {value!r}: it must be a string")
    return name


def _read_special_tokens(data: Any, source: str) -> tuple[dict[str, str], dict[str, int]]:
    """The rules' special_tokens as (names, ids) by role."""
    try:
        names = {str(role): str(entry["token"]) for role, entry in data.items()}
        ids = {str(role): int(entry["id"]) for role, entry in data.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise TokenizerError(f"{source}: special_tokens must map each role to a token and its id") from None
    missing = [role for role in _ROLES if role not in names and role != "mask"]
    if missing:
        raise TokenizerError(f"{source}: special_tokens lacks {', '.join(missing)}")
    return names, ids
