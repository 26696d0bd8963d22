"""Paged key and value pools of the layers of one stage."""

from __future__ import annotations

import torch
from torch import Tensor

from wavepp.stage.model.batch import ROWS_MIN, BatchPlan


class BatchTensors:
    """A BatchPlan with its index arrays as tensors, made once a job and used by every layer."""

    __slots__ = ("gather", "plan", "positions", "slots")

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        self.positions = torch.from_numpy(plan.positions)
        self.slots = torch.from_numpy(plan.slots)
        self.gather = torch.from_numpy(plan.gather)


class PagedPools:
    """For every layer two arrays [tokens, kv_heads, head_dim], `blocks` blocks of `block_tokens` and behind them a
    scratch area for rows that fill up a small batch. All of it is touched at the start: the memory is there."""

    def __init__(
        self, layers: int, blocks: int, block_tokens: int, kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        scratch = -(-ROWS_MIN // block_tokens)
        shape = ((blocks + scratch) * block_tokens, kv_heads, head_dim)
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.scratch_block = blocks
        self.keys = [torch.empty(shape, dtype=dtype).zero_() for _ in range(layers)]
        self.values = [torch.empty(shape, dtype=dtype).zero_() for _ in range(layers)]

    @property
    def nbytes(self) -> int:
        return sum(pool.nbytes for pool in (*self.keys, *self.values))

    def write_and_read(self, layer: int, key: Tensor, value: Tensor, batch: BatchTensors) -> tuple[Tensor, Tensor]:
        """Store the batch's keys and values [rows, kv_heads, head_dim]; return what its spans index."""
        self.keys[layer].index_copy_(0, batch.slots, key)
        self.values[layer].index_copy_(0, batch.slots, value)
        if batch.plan.fresh:
            return key, value
        return self._gathered(self.keys[layer], batch.gather), self._gathered(self.values[layer], batch.gather)

    def _gathered(self, pool: Tensor, blocks: Tensor) -> Tensor:
        paged = pool.view(-1, self.block_tokens * pool.shape[1] * pool.shape[2])
        return paged.index_select(0, blocks).view(-1, pool.shape[1], pool.shape[2])
