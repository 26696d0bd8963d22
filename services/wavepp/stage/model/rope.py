"""Rotary position embedding. Frequencies of the scaled variants come from transformers, which knows them.

A checkpoint rotates element i of a head with element i + head_dim / 2. With such pairs next to each other the rotation
is one complex product; so the rows that make queries and keys are reordered once, at load. Both are reordered alike,
so their products, all that attention sees of them, stay the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wavepp.stage.model.checkpoint import Checkpoint


class Rope:
    """Angles for absolute positions, in fp32 whatever the compute dtype."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._frequencies, self._scaling = _frequencies(checkpoint)

    def rotation(self, positions: Tensor) -> Tensor:
        """Complex factors [rows, 1, head_dim / 2] for absolute positions [rows]."""
        angles = positions.to(torch.float32)[:, None] * self._frequencies
        return torch.polar(torch.full_like(angles, self._scaling), angles).unsqueeze(1)


def paired(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder the first dimension [heads * head_dim, ...] so that elements that rotate together are neighbours."""
    by_half = rows.view(-1, 2, head_dim // 2, *rows.shape[1:])
    return by_half.transpose(1, 2).reshape(rows.shape)


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Rotate [rows, heads, head_dim] of paired elements in fp32; returns a new tensor of the same dtype."""
    wide = heads.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    pairs = torch.view_as_complex(wide.view(*heads.shape[:-1], -1, 2))
    return torch.view_as_real(pairs.mul_(rotation)).flatten(2).to(heads.dtype)


def _frequencies(checkpoint: Checkpoint) -> tuple[Tensor, float]:
    """Angle per position of each pair [head_dim / 2], and the factor on cos and sin."""
    options = checkpoint.config.get("rope_parameters") or checkpoint.config.get("rope_scaling") or {}
    kind = options.get("rope_type", options.get("type", "default"))
    theta = options.get("rope_theta", checkpoint.config.get("rope_theta"))
    if kind == "default" and theta is not None:
        # Without transformers, whose import would cost every stage some 110 MB and two seconds.
        dim = checkpoint.shape.head_dim
        return 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)), 1.0

    from transformers import AutoConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(AutoConfig.from_pretrained(checkpoint.path))
    return rotary.inv_freq.float(), float(rotary.attention_scaling)
