"""The one kind of error a person is meant to read.

Every message names what was wrong, where (the file, the field), and what to do about it. The commands print it as one
line and leave with exit status 2; a library user catches `EdgeAlbertError` or one of its children.
"""

from __future__ import annotations


class EdgeAlbertError(Exception):
    """Bad input, said in one line: what, where, and the remedy."""


class ConfigError(EdgeAlbertError):
    """A config.json that does not describe an ALBERT."""


class CheckpointError(EdgeAlbertError):
    """A checkpoint that cannot be read, or whose tensors do not fit its configuration."""


class TokenizerError(EdgeAlbertError):
    """A tokenizer that is missing, damaged, or of another size than the model's vocabulary."""


class BundleError(EdgeAlbertError):
    """A bundle that is damaged, incomplete, or written by a newer version."""


class DataError(EdgeAlbertError):
    """A data file with rows that cannot be used; names the file and the line."""


class EngineError(EdgeAlbertError):
    """No inference engine for this bundle, or one too old for it."""
