"""Looking at a method's state: what it holds, and in what two of them differ."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smope.class_statistics import ClassMoments
from smope.heads.gaussian_replay import GaussianReplay
from smope.heads.sums import SumsHead
from smope.heads.trained import LinearRows
from smope.methods import Method


def gap(one: Tensor, other: Tensor) -> float:
    """The largest difference; equal infinities do not differ."""
    return float(torch.where(one == other, 0.0, (one - other).abs()).max())


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> str:
    """The first tensor in which two states are not the same to the bit, in words; empty when there is none."""
    if one.keys() != other.keys():
        return f"only one of them has {', '.join(sorted(one.keys() ^ other.keys()))}"
    for name, tensor in one.items():
        if tensor.shape != other[name].shape:
            return f"{name} has shape {tuple(tensor.shape)} and {tuple(other[name].shape)}"
        if not torch.equal(tensor, other[name]):
            return f"{name} differs by up to {(tensor.double() - other[name].double()).abs().max().item():.3g}"
    return ""


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    """A copy of a module's state."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def without_head(method: Method) -> dict[str, Tensor]:
    """A copy of the parameters that are no head's."""
    heads = {id(parameter) for parameter in head_parameters(method)}
    return {name: parameter.detach().clone() for name, parameter in method.named_parameters() if id(parameter) not in heads}


def head_parameters(method: Method) -> list[nn.Parameter]:
    """The parameters of the head, and of any other head a method has for itself."""
    return [parameter for module in method.modules() if isinstance(module, LinearRows) for parameter in module.parameters()]


def sizes(method: Method) -> dict[str, int]:
    """How many numbers each tensor holds that has no business to grow with the classes: none of the heads'."""
    return {name: tensor.numel() for name, tensor in method.state_dict().items() if not name.startswith(("head.", "guide.", "trial."))}


def moments(method: Method) -> dict[str, Tensor]:
    """What the head knows of each class, and of all of them together; empty where it keeps no moments."""
    if isinstance(method.head, SumsHead):
        sums = method.head.sums
        scatter = sums.factor_RF.T @ sums.factor_RF
        return {"count": sums.count_C.double(), "mean": sums.mean_CF, "common scatter": scatter}
    kept = getattr(method.head, "statistics", None)
    if not isinstance(kept, ClassMoments):
        return {}
    known = {"count": kept.count_C.double(), "mean": kept.mean_CD, "scatter": kept.scatter_CD}
    if isinstance(kept, GaussianReplay):
        known["common scatter"] = kept.factor_RD.T @ kept.factor_RD
        if kept.tap.kind == "full":
            factors = [kept.factor_RD[kept.owner_R == row] for row in range(len(kept.count_C))]
            known["scatter matrix"] = torch.stack([factor_nD.T @ factor_nD for factor_nD in factors])
    return {name: tensor.clone() for name, tensor in known.items()}


# -- what a method holds besides parameters and buffers --------------------------------------------------------------------

STATEFUL = ("tensor", "array", "generator")
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def plain_attributes(method: nn.Module) -> dict[str, str]:
    """Every value reachable through the plain attributes of a method and its parts: path -> what kind of state it is, or its repr."""
    found: dict[str, str] = {}
    visited = {id(module) for module in method.modules()}
    for path, module in method.named_modules():
        for name, value in vars(module).items():
            if name not in _OF_EVERY_MODULE:
                _look_into(value, f"{path}.{name}".lstrip("."), found, visited)
    return found


def _look_into(value: Any, path: str, found: dict[str, str], visited: set[int]) -> None:
    if isinstance(value, Tensor):
        found[path] = "tensor"
    elif isinstance(value, np.ndarray):
        found[path] = "array"
    elif isinstance(value, torch.Generator | random.Random | np.random.Generator):
        found[path] = "generator"
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        found[path] = repr(value)
    elif not (isinstance(value, type) or id(value) in visited):
        visited.add(id(value))
        inner: Any = getattr(value, "__dict__", {})
        if isinstance(value, Mapping):
            inner = value
        elif isinstance(value, list | tuple | set | frozenset | deque):
            inner = dict(enumerate(value))
            found[f"{path} (length)"] = str(len(value))
        for name, part in inner.items():
            _look_into(part, f"{path}.{name}", found, visited)


def changed_attributes(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What differs between two looks, in words."""
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return ", ".join(f"{name} from {before.get(name, 'nothing')} to {after.get(name, 'nothing')}" for name in names)
