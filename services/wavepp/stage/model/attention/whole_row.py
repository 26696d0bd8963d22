"""Whole rows of scores, 64 queries at a time: two matrix products around a softmax over the full row.

On a CPU with avx512_bf16 and no matrix tiles this beats every online softmax that torch offers: its products run at
full speed in bf16, and 64 rows of scores stay in the cache.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

QUERY_BLOCK: Final = 64
"""Query blocks start at multiples of it in absolute positions, whatever the chunk, so that a row is computed the same
way on every chunk grid of such multiples."""

KEYS_MAX: Final = 16384
"""Above it the rows of scores no longer fit in the cache."""

_BATCHED_KEYS_MAX: Final = 1024
"""Up to here the kv heads go together in one batched product; above, one by one (measured). It depends on the
block's last key only, like the block itself."""


class WholeRow:
    """See the module's text. Scores are rounded to the compute dtype."""

    name = "whole_row"

    def __init__(self) -> None:
        self._masks: dict[tuple[int, torch.dtype], Tensor] = {}

    def supports(self, dtype: torch.dtype, head_dim: int, device: torch.device) -> bool:
        return device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, start: int, scale: float, out: Tensor) -> None:
        """See AttentionBackend."""
        rows, heads, dim = query.shape
        kv_heads = key.shape[1]
        group = heads // kv_heads
        scaled = (query * scale).view(rows, kv_heads, group, dim).transpose(0, 1)
        grouped_out = out.view(rows, kv_heads, group, dim).transpose(0, 1)
        keys = key.permute(1, 2, 0)
        values = value.transpose(0, 1).contiguous()
        mask = self._mask(group, query.dtype)
        first = 0
        while first < rows:
            last = min(rows, first + QUERY_BLOCK - (start + first) % QUERY_BLOCK)
            count, seen = last - first, start + last
            block_mask = mask[: count * group, :count]
            if seen <= _BATCHED_KEYS_MAX:
                block = scaled[:, first:last].reshape(kv_heads, count * group, dim)
                scores = torch.bmm(block, keys[:, :, :seen])
                scores[:, :, start + first :] += block_mask
                result = torch.bmm(torch.softmax(scores, -1), values[:, :seen])
                grouped_out[:, first:last] = result.view(kv_heads, count, group, dim)
            else:
                for head in range(kv_heads):
                    block = scaled[head, first:last].reshape(count * group, dim)
                    scores = torch.mm(block, keys[head, :, :seen])
                    scores[:, start + first :] += block_mask
                    result = torch.mm(torch.softmax(scores, -1), values[head, :seen])
                    grouped_out[head, first:last] = result.view(count, group, dim)
            first = last

    def _mask(self, group: int, dtype: torch.dtype) -> Tensor:
        """[QUERY_BLOCK * group, QUERY_BLOCK]: -inf where a query, `group` rows each, would see a later key."""
        mask = self._masks.get((group, dtype))
        if mask is None:
            later = torch.full((QUERY_BLOCK, QUERY_BLOCK), float("-inf"), dtype=dtype).triu(1)
            mask = self._masks[group, dtype] = later.repeat_interleave(group, 0)
        return mask
