"""Prefix and own chunk apart through torch's flash kernel, joined by their log-sum-exp."""

from __future__ import annotations

import torch
from torch import Tensor

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class TwoPart:
    """The prefix needs no mask and the own chunk is plainly causal, so neither pays for a mask.

    widen: compute bf16 inputs in fp32. torch's bf16 kernel is the slower one unless the CPU has matrix tiles.
    """

    name = "two_part"

    def __init__(self, *, widen: bool) -> None:
        self._widen = widen

    def supports(self, dtype: torch.dtype, head_dim: int, device: torch.device) -> bool:
        return device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, start: int, scale: float, out: Tensor) -> None:
        """See AttentionBackend."""
        if self._widen:
            query, key, value = query.float(), key.float(), value.float()
        q, k, v = _heads_first(query), _heads_first(key), _heads_first(value)
        own, own_lse = _flash(q, k[:, :, start:], v[:, :, start:], 0.0, True, scale=scale)
        if start == 0:
            out.copy_(own[0].transpose(0, 1))
            return
        # Heads that share keys are folded into the rows: larger tiles, and the prefix is read once for all of them.
        rows, heads, dim = query.shape
        kv_heads = key.shape[1]
        group = heads // kv_heads
        folded = query.view(rows, kv_heads, group, dim).transpose(0, 1).reshape(1, kv_heads, rows * group, dim)
        prefix, prefix_lse = _flash(folded, k[:, :, :start], v[:, :, :start], 0.0, False, scale=scale)
        grouped = (kv_heads, rows, group)
        share = torch.sigmoid(prefix_lse[0].reshape(grouped) - own_lse[0].view(kv_heads, group, rows).transpose(1, 2))
        joined = torch.lerp(
            own[0].transpose(0, 1).reshape(rows, kv_heads, group, dim).float(),
            prefix[0].reshape(*grouped, dim).transpose(0, 1).float(),
            share.transpose(0, 1).unsqueeze(-1),
        )
        out.copy_(joined.view(rows, heads, dim))


def _heads_first(tensor: Tensor) -> Tensor:
    return tensor.transpose(0, 1).unsqueeze(0)
