"""edge_albert: ALBERT on phones and Raspberry Pis, with one copy of the shared weights all the way.

`edge_albert.load(folder)` opens an exported bundle and needs neither PyTorch nor ONNX nor transformers, only an engine.
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["EdgeAlbertError", "__version__"]

from edge_albert.errors import EdgeAlbertError
