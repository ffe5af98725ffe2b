"""edge_albert: ALBERT on phones and Raspberry Pis, with one copy of the shared weights all the way.

`edge_albert.load(folder)` opens an exported bundle and needs neither PyTorch nor ONNX nor transformers, only an engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edge_albert.errors import EdgeAlbertError

if TYPE_CHECKING:
    from edge_albert.runtime.load import load

__version__ = "0.1.0"
__all__ = ["EdgeAlbertError", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """`edge_albert.load` is imported when it is first used: the commands that train need no runtime."""
    if name == "load":
        from edge_albert.runtime.load import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
