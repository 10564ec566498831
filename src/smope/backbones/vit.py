"""One explicit vision transformer, frozen, that asks a prompter for each block's prefix.

No hooks, no hidden state, no copy of the ViT per method: `FrozenViT.forward(images, prompter, readout)` is the whole story. Parameter
names follow timm (`blocks.0.attn.qkv.weight`), so checkpoints can be compared key by key.

Two savings are exact and live here: frozen weights never ask for a gradient, and where only the CLS row of the last block that is
read is asked for, its queries, its attention rows and its MLP are computed for that one token (keys and values for all).

Axes: B images, N tokens (CLS, registers, patches), C = H * D width, H heads, D dimensions of a head, S side of the patch grid.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from smope.attention import attend
from smope.backbones.linear import frozen_linear
from smope.backbones.prompter import CLS, PLAIN, Prompter, Readout
from smope.errors import ConfigError, WeightsError


@dataclass(frozen=True)
class VitShape:
    """Everything about a plain ViT that its weights do not say by themselves."""

    dim: int
    depth: int
    heads: int
    patch: int
    grid: int  #: side of the position grid the weights were trained with
    mlp_hidden: int
    registers: int = 0
    layer_scale: bool = False
    qkv_bias: bool = True
    norm_eps: float = 1e-6
    antialias: bool = True  #: whether the position grid is resized with antialiasing

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    def tokens(self, image_size: int) -> int:
        """N: CLS, registers and patches of a square image."""
        return 1 + self.registers + (image_size // self.patch) ** 2


class _Named(nn.Module):
    """A bare container, so that parameters get timm's dotted names."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    gamma: nn.Parameter

    def __init__(self, **parameters: tuple[int, ...] | None) -> None:
        super().__init__()
        for name, shape in parameters.items():
            self.register_parameter(name, None if shape is None else nn.Parameter(torch.zeros(shape)))


def _linear(inputs: int, outputs: int, bias: bool = True) -> _Named:
    return _Named(weight=(outputs, inputs), bias=(outputs,) if bias else None)


class _Attention(nn.Module):
    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.qkv = _linear(shape.dim, 3 * shape.dim, shape.qkv_bias)
        self.proj = _linear(shape.dim, shape.dim)


class _Mlp(nn.Module):
    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.fc1 = _linear(shape.dim, shape.mlp_hidden)
        self.fc2 = _linear(shape.mlp_hidden, shape.dim)


class Block(nn.Module):
    """One pre-norm transformer block. `index` and `scale` are there for prompters."""

    def __init__(self, index: int, shape: VitShape) -> None:
        super().__init__()
        self.index = index
        self.heads = shape.heads
        self.scale = 1 / math.sqrt(shape.head_dim)
        self.eps = shape.norm_eps
        self.norm1 = _Named(weight=(shape.dim,), bias=(shape.dim,))
        self.attn = _Attention(shape)
        self.norm2 = _Named(weight=(shape.dim,), bias=(shape.dim,))
        self.mlp = _Mlp(shape)
        if shape.layer_scale:
            self.ls1 = _Named(gamma=(shape.dim,))
            self.ls2 = _Named(gamma=(shape.dim,))
        self.layer_scale = shape.layer_scale

    def forward(self, x_BNC: Tensor, prompter: Prompter, cls_only: bool) -> Tensor:
        """`cls_only`: return the CLS row alone, computed as if all rows were there."""
        prompted, linear = self.index in prompter.prefixed, prompter.linear
        h_BNC = self._norm("norm1", x_BNC, prompter)
        if cls_only and not prompted and linear is None:
            q_BHND, k_BHMD, v_BHMD = self._cls_query(h_BNC)
        else:
            more_BNX = linear and linear(self, "qkv", h_BNC)
            q_BHND, k_BHMD, v_BHMD = self.split_heads(frozen_linear(h_BNC, self.attn.qkv.weight, self.attn.qkv.bias, more_BNX), 3)
        prefix = prompter.prefix(self, x_BNC, q_BHND) if prompted else None
        scores, values = prefix if prefix is not None else (None, None)
        if cls_only:
            x_BNC, q_BHND = x_BNC[:, :1], q_BHND[:, :, :1]
            scores = scores[:, :, :1] if scores is not None else None
        mixed_BNC = attend(q_BHND, k_BHMD, v_BHMD, scores, values).transpose(1, 2).flatten(2)
        made_BNC = frozen_linear(mixed_BNC, self.attn.proj.weight, self.attn.proj.bias, linear and linear(self, "proj", mixed_BNC))
        x_BNC = self.joined("attn", "ls1", x_BNC, made_BNC, prompter)
        h_BNC = self._norm("norm2", x_BNC, prompter)
        h_BNX = F.gelu(frozen_linear(h_BNC, self.mlp.fc1.weight, self.mlp.fc1.bias, linear and linear(self, "fc1", h_BNC)))
        made_BNC = frozen_linear(h_BNX, self.mlp.fc2.weight, self.mlp.fc2.bias, linear and linear(self, "fc2", h_BNX))
        return self.joined("mlp", "ls2", x_BNC, made_BNC, prompter)

    def split_heads(self, rows_BNX: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Cut `parts * C` columns into `parts` tensors of shape B,H,N,D."""
        split: tuple[Tensor, ...] = rows_BNX.unflatten(-1, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return split

    def project_prefix(self, vectors_PC: Tensor, which: str) -> Tensor:
        """Send prompt vectors through the frozen W_K ("key") or W_V ("value"), bias included: H,P,D."""
        part = {"key": 1, "value": 2}[which]
        weight_CC = self.attn.qkv.weight.unflatten(0, (3, -1))[part]
        bias_C = None if self.attn.qkv.bias is None else self.attn.qkv.bias.unflatten(0, (3, -1))[part]
        return self.split_heads(frozen_linear(vectors_PC, weight_CC, bias_C).unsqueeze(0), 1)[0].squeeze(0)

    def _cls_query(self, h_BNC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        C = h_BNC.shape[-1]
        weight, bias = self.attn.qkv.weight, self.attn.qkv.bias
        (q_BHND,) = self.split_heads(frozen_linear(h_BNC[:, :1], weight[:C], None if bias is None else bias[:C]), 1)
        k_BHMD, v_BHMD = self.split_heads(frozen_linear(h_BNC, weight[C:], None if bias is None else bias[C:]), 2)
        return q_BHND, k_BHMD, v_BHMD

    def _norm(self, name: str, x: Tensor, prompter: Prompter) -> Tensor:
        own: _Named = getattr(self, name)
        weight, bias = (prompter.norm and prompter.norm(self, name)) or (own.weight, own.bias)
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.eps)

    def joined(self, branch: str, scale: str, x_BNC: Tensor, made_BNC: Tensor, prompter: Prompter) -> Tensor:
        """The residual stream after a branch, and after what the prompter adds beside it."""
        if self.layer_scale:
            own: _Named = getattr(self, scale)
            made_BNC = made_BNC * own.gamma
        beside_BNC = prompter.residual and prompter.residual(self, branch, x_BNC)
        return x_BNC + made_BNC if beside_BNC is None else x_BNC + made_BNC + beside_BNC


class _PatchEmbed(nn.Module):
    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.proj = _Named(weight=(shape.dim, 3, shape.patch, shape.patch), bias=(shape.dim,))


class FrozenViT(nn.Module):
    """A plain ViT whose weights never move and never ask for a gradient."""

    def __init__(self, shape: VitShape, image_size: int) -> None:
        super().__init__()
        if image_size % shape.patch or image_size <= 0:
            below = max(1, image_size // shape.patch) * shape.patch
            raise ConfigError(
                f"Image size {image_size} is not a multiple of the patch size {shape.patch}.",
                f"Use {below} or {below + shape.patch} for backbone.image_size.",
            )
        self.shape = shape
        self.image_size = image_size
        #: keep only each block's input for the backward pass and compute the rest again: a third more time, a fraction of the memory
        self.checkpointing = False
        self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + shape.grid**2, shape.dim))
        if shape.registers:
            self.reg_token = nn.Parameter(torch.zeros(1, shape.registers, shape.dim))
        self.patch_embed = _PatchEmbed(shape)
        self.blocks = nn.ModuleList(Block(index, shape) for index in range(shape.depth))
        self.norm = _Named(weight=(shape.dim,), bias=(shape.dim,))
        self.register_buffer("_positions_1NC", torch.zeros(0), persistent=False)
        self.requires_grad_(False)

    @staticmethod
    def from_timm(model: nn.Module | Mapping[str, object], image_size: int | None = None, heads: int | None = None) -> FrozenViT:
        """The same network as a plain ViT of timm's: a live model, or its state dict, which does not say how many `heads` it has.

        Float32, on the CPU, at the image size it was trained with unless another is given; what is not plain is refused with the reason.
        """
        from smope.backbones.from_timm import from_timm  # which stands on this file

        return from_timm(model, image_size, heads)

    def forward(self, images_B3HW: Tensor, prompter: Prompter = PLAIN, readout: Readout = CLS) -> Tensor:
        """The feature of each image, B,F: what `readout` takes from the pass that `prompter` puts something into."""
        x_BNC = self.embed(images_B3HW)
        depth = len(self.blocks)
        read = [index % depth for index in readout.blocks]
        taken: dict[int, Tensor] = {}
        # tensors that only stand in for this call (`torch.func.functional_call`) are gone when a block would be computed again
        again = self.checkpointing and torch.is_grad_enabled() and isinstance(self.pos_embed, nn.Parameter)
        for index, block in enumerate(self.blocks[: max(read) + 1]):
            x_BNC = prompter.tokens(index, x_BNC) if prompter.tokens else x_BNC
            cls_only = index == max(read) and readout.tokens == ("cls",)
            if again:
                x_BNC = checkpoint(block, x_BNC, prompter, cls_only, use_reentrant=False, preserve_rng_state=False)
            else:
                x_BNC = block(x_BNC, prompter, cls_only)
            if index in read:
                taken[index] = self._read(x_BNC, prompter, readout)
        return taken[read[0]] if len(read) == 1 else torch.cat([taken[index] for index in read], dim=1)

    def _read(self, x_BNC: Tensor, prompter: Prompter, readout: Readout) -> Tensor:
        """The tokens that are read after one block, side by side."""
        patches = (self.image_size // self.shape.patch) ** 2
        read_BTC = torch.stack([x_BNC[:, 0] if token == "cls" else x_BNC[:, -patches:].mean(1) for token in readout.tokens], dim=1)
        if readout.norm == "final":
            read_BTC = self.final_norm(read_BTC, prompter)
        elif readout.norm == "plain":
            read_BTC = F.layer_norm(read_BTC, read_BTC.shape[-1:])
        return read_BTC.flatten(1)

    def embed(self, images_B3HW: Tensor) -> Tensor:
        """Patches to tokens, positions added: CLS, registers (which have no position), patches."""
        if images_B3HW.shape[-2:] != (self.image_size, self.image_size):
            raise ConfigError(
                f"Images of {tuple(images_B3HW.shape[-2:])} pixels reached a backbone set to {self.image_size} px.",
                "Resize them, or load the backbone with that image_size.",
            )
        proj = self.patch_embed.proj
        # a patch convolution whose stride is its size is a linear map of cut-out squares; the convolution is the faster spelling
        patches_BNC = F.conv2d(images_B3HW, proj.weight, proj.bias, stride=self.shape.patch).flatten(2).transpose(1, 2)
        cls_BNC = self.cls_token.expand(patches_BNC.shape[0], -1, -1)  # not len(): an export keeps the batch open
        x_BNC = torch.cat([cls_BNC, patches_BNC], dim=1) + self._positions()
        if not self.shape.registers:
            return x_BNC
        registers_BNC = self.reg_token.expand(patches_BNC.shape[0], -1, -1)
        return torch.cat([x_BNC[:, :1], registers_BNC, x_BNC[:, 1:]], dim=1)

    def final_norm(self, x: Tensor, prompter: Prompter = PLAIN) -> Tensor:
        """The LayerNorm after the last block."""
        weight, bias = (prompter.norm and prompter.norm(self, "norm")) or (self.norm.weight, self.norm.bias)
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.shape.norm_eps)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load strictly: every missing key, every surplus key and every shape that does not fit is named."""
        own = self.state_dict()
        problems = [f"missing {key}" for key in sorted(own.keys() - state.keys())]
        problems += [f"surplus {key}" for key in sorted(state.keys() - own.keys())]
        problems += [
            f"{key} is {tuple(state[key].shape)}, expected {tuple(own[key].shape)}"
            for key in sorted(own.keys() & state.keys())
            if own[key].shape != state[key].shape
        ]
        if problems:
            raise WeightsError(f"The weights do not fit this ViT: {'; '.join(problems)}.", "Check the backbone's name and layout.")
        self.load_state_dict(state)
        self._positions_1NC = torch.zeros(0)

    @property
    def fingerprint(self) -> str:
        """sha256 of the weights, whatever file they came from."""
        return fingerprint_of(self.state_dict())

    def train(self, mode: bool = True) -> FrozenViT:
        """A frozen model has one mode."""
        return super().train(False)

    def _positions(self) -> Tensor:
        """Position embeddings for this image size (kept once computed): CLS keeps its own, the grid is resized bicubically."""
        side = self.image_size // self.shape.patch
        if not isinstance(self.pos_embed, nn.Parameter):  # a tensor put in its place (`torch.func.functional_call`) may learn
            return resize_positions(self.pos_embed, side, self.shape.antialias)
        if self._positions_1NC.numel() == 0 or self._positions_1NC.device != self.pos_embed.device:
            self._positions_1NC = resize_positions(self.pos_embed.detach(), side, self.shape.antialias)
        return self._positions_1NC.to(self.pos_embed.dtype)


def resize_positions(pos_1NC: Tensor, side: int, antialias: bool) -> Tensor:
    """Resize the grid part of `CLS + grid` position embeddings to side x side."""
    trained = math.isqrt(pos_1NC.shape[1] - 1)
    if trained == side:
        return pos_1NC
    grid_1CSS = pos_1NC[:, 1:].unflatten(1, (trained, trained)).permute(0, 3, 1, 2).float()
    grid_1CSS = F.interpolate(grid_1CSS, size=(side, side), mode="bicubic", align_corners=False, antialias=antialias)
    return torch.cat([pos_1NC[:, :1], grid_1CSS.to(pos_1NC.dtype).permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


def fingerprint_of(state: Mapping[str, Tensor]) -> str:
    """sha256 over sorted names, shapes and float32 bytes of a state dict under our names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
