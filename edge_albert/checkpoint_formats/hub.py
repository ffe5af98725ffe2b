"""A model name of the Hugging Face hub ► the folder in the local cache that holds its files.

The download, the cache and its rules (HF_HOME, HF_HUB_OFFLINE, tokens) are huggingface_hub's. When the hub cannot be
reached it hands out what an earlier download, by this project or by transformers, left in the cache.
"""

from __future__ import annotations

import re
from pathlib import Path

from edge_albert.errors import CheckpointError

TOKENIZER_FILES = (
    "spiece.model", "30k-clean.model", "vocab.txt", "vocab_chinese.txt", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
_BIN = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_name(source: str) -> bool:
    """Whether `source` has the form of a hub name: `model` or `owner/model`."""
    return _NAME.fullmatch(source) is not None


def fetch(name: str) -> Path:
    """Download what is missing of config, tokenizer and weights (safetensors; else .bin) and return the cached folder.

    Raises CheckpointError, in one line, when the hub does not have or give the model and the cache does not hold it.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise CheckpointError(
            f"{name}: no such folder, and reading it from the hub needs huggingface_hub: pip install huggingface-hub"
        ) from None
    try:
        folder = Path(snapshot_download(name, allow_patterns=["config.json", *TOKENIZER_FILES, *_SAFETENSORS]))
        if not any(folder.glob("model*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=["config.json", *TOKENIZER_FILES, *_BIN]))
    except Exception as error:  # the client lets through errors of several HTTP libraries, which share no base class
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{name}: no such folder here, and no such model in the Hugging Face hub's cache or within reach "
            f"({type(error).__name__}: {reason}): check the name and the connection, or name a folder"
        ) from None
    return folder
