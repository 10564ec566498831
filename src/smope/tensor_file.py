"""safetensors files with one text and a hash in the header: model files and checkpoints.

The hash covers the text and each tensor's name, type, shape and bytes, so that a flipped bit is an error instead of another answer. A file
without a hash was written before there was one, and is read as it is.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

_TEXT, _HASH = "smope", "sha256"
_LENGTH = struct.Struct("<Q")  # of the header, in front of it
_ALIGNED = 8  # bytes: where safetensors begins the tensors


def pack(text: str, tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of the file; equal content is equal bytes."""
    own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    plain = save(own)
    start = _LENGTH.size + _LENGTH.unpack_from(plain)[0]
    # by hand: safetensors writes several entries of metadata in an order of chance
    header = {"__metadata__": {_HASH: _digest(text, own), _TEXT: text}, **json.loads(plain[_LENGTH.size : start])}
    written = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    written += b" " * (-len(written) % _ALIGNED)
    return _LENGTH.pack(len(written)) + written + plain[start:]


def unpack(path: Path) -> tuple[str, dict[str, Tensor]]:
    """Return text (empty if there is none) and tensors of a file; one that is damaged is a ValueError."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # copies: what is given out is the file itself, in memory, and whoever writes into it would change or cut off what we know
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
        text = metadata.get(_TEXT, "")
        same = _HASH not in metadata or metadata[_HASH] == _digest(text, tensors)
    except (SafetensorError, RuntimeError, TypeError, KeyError, OSError) as error:  # what torch cannot hold is not a tensor of smope's
        raise ValueError(str(error)) from None
    if not same:
        raise ValueError("its content does not match the hash in its header: bits have changed on the disk or on the way")
    return text, tensors


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
