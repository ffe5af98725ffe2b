"""Weight files of a Hugging Face folder ► {name: array}, under the names in the file.

Read in transformers' order of preference: model.safetensors, its sharded form, pytorch_model.bin, its sharded form. A
`.bin` is a pickle: PyTorch (imported only then) unpickles it with `weights_only`, so that nothing in it can run.

Arrays keep the stored dtype, except bfloat16, which NumPy does not have: those arrive as float32, which holds every
bfloat16 exactly.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import safetensors

from edge_albert.checkpoint_formats.tensors import bfloat16_to_float32
from edge_albert.errors import CheckpointError

Tensors = dict[str, np.ndarray]

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "?",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1",
}  # fmt: skip
_PLAIN_NAME = re.compile(r"\w[\w.-]*")  # no folder, no way up
_OTHER_WEIGHTS = (".h5", ".msgpack", ".ot", ".onnx", ".gguf", ".pt", ".pth", ".ckpt", ".bin", ".safetensors")


def has_weights(folder: Path) -> bool:
    """Whether the folder holds a weight file that `read_weights` reads."""
    return any((folder / name).is_file() for name in _READERS)


def read_weights(folder: Path) -> Tensors:
    """Every tensor of the folder's weights. CheckpointError names the file when there is none or it is damaged."""
    for name, read in _READERS.items():
        if (folder / name).is_file():
            return read(folder / name)
    raise no_weights(folder)


def no_weights(folder: Path) -> CheckpointError:
    """The error for a folder with a config and nothing to read, naming what lies there instead."""
    other = sorted(path.name for path in folder.iterdir() if path.suffix in _OTHER_WEIGHTS)
    found = f"; {', '.join(other)} cannot be read: save it again with save_pretrained" if other else ""
    return CheckpointError(
        f"{folder}: no weights: model.safetensors, pytorch_model.bin (either may be sharded) and TF1 checkpoints "
        f"(model.ckpt-….index) are read{found}"
    )


# -- one file -------------------------------------------------------------------------------------------------------


def _read_safetensors(path: Path) -> Tensors:
    data = _read_bytes(path)
    try:
        entries = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path}: damaged or cut short ({_first_line(error)}): copy it again") from None
    return {name: _safetensors_array(path, name, entry) for name, entry in entries}


def _safetensors_array(path: Path, name: str, entry: dict[str, Any]) -> np.ndarray:
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise CheckpointError(f"{path}: {name} is stored as {entry['dtype']}: save it as float32, float16 or bfloat16")
    array = np.frombuffer(entry["data"], dtype).reshape(entry["shape"])
    return bfloat16_to_float32(array) if entry["dtype"] == "BF16" else array


def _read_bin(path: Path) -> Tensors:
    _read_bytes(path, limit=_POINTER_BYTES)
    try:
        import torch
    except ImportError:
        raise CheckpointError(
            f"{path}: reading a .bin file needs PyTorch: pip install torch, or save the model as safetensors"
        ) from None
    if tarfile.is_tarfile(path):
        raise CheckpointError(f"{path}: is in PyTorch's tar format of before 2017: save it again with a later PyTorch")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:
        raise CheckpointError(
            f"{path}: damaged, or holds objects besides tensors, which are not unpickled because they can run code: "
            "save it again as safetensors"
        ) from None
    except Exception as error:  # what an unpickler raises on damaged bytes is not limited to any list
        raise CheckpointError(f"{path}: damaged or cut short ({_first_line(error)}): copy it again") from None
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise CheckpointError(f"{path}: is not a state dict of names and tensors: save it with save_pretrained")
    return {str(name): _torch_array(path, str(name), tensor) for name, tensor in state.items()}


def _torch_array(path: Path, name: str, tensor: Any) -> np.ndarray:
    tensor = tensor.detach()
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    try:
        return np.asarray(tensor.numpy(), order="C")
    except (TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: {name} cannot be read ({_first_line(error)}): save it as float32") from None


# -- several files --------------------------------------------------------------------------------------------------


def _read_shards(index: Path, read: Callable[[Path], Tensors]) -> Tensors:
    """The shards that an index's `weight_map` (tensor ► file name) names; they must lie beside it."""
    try:
        weight_map = json.loads(_read_bytes(index))["weight_map"]
        shards = sorted(set(weight_map.values()))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise CheckpointError(
            f"{index}: not a JSON object whose weight_map maps tensors to files: copy it again"
        ) from None
    tensors: Tensors = {}
    for shard in shards:
        if not isinstance(shard, str) or not _PLAIN_NAME.fullmatch(shard):
            raise CheckpointError(
                f"{index}: names the shard {shard!r}: only plain file names in the same folder are read"
            )
        part = read(index.with_name(shard))
        if twice := sorted(tensors.keys() & part.keys()):
            raise CheckpointError(f"{index.with_name(shard)}: holds {twice[0]}, which another shard holds too")
        tensors |= part
    if absent := sorted(weight_map.keys() - tensors.keys()):
        raise CheckpointError(f"{index}: names {absent[0]}, which no shard holds: the shards are of another checkpoint")
    return tensors


_READERS: dict[str, Callable[[Path], Tensors]] = {
    "model.safetensors": _read_safetensors,
    "model.safetensors.index.json": lambda index: _read_shards(index, _read_safetensors),
    "pytorch_model.bin": _read_bin,
    "pytorch_model.bin.index.json": lambda index: _read_shards(index, _read_bin),
}


# -- bytes ----------------------------------------------------------------------------------------------------------

_POINTER = b"version https://git-lfs"
_POINTER_BYTES = 1024


def _read_bytes(path: Path, limit: int = -1) -> bytes:
    """The file's first `limit` bytes, by default all. CheckpointError when unreadable or a Git LFS pointer."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}): the checkpoint is incomplete") from None
    if data.startswith(_POINTER):
        raise CheckpointError(f"{path}: is a Git LFS pointer and not the file itself: run `git lfs pull` in its folder")
    return data


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
