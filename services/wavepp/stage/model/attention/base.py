"""The interface of attention kernels."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class AttentionBackend(Protocol):
    """Causal attention of one chunk over its prefix and itself."""

    @property
    def name(self) -> str: ...

    def supports(self, dtype: torch.dtype, head_dim: int, device: torch.device) -> bool: ...

    def attend(self, query: Tensor, key: Tensor, value: Tensor, start: int, scale: float, out: Tensor) -> None:
        """query [x, H, D] of positions [start, start + x); key and value [start + x, Hk, D] of positions from 0 on;
        H is a multiple of Hk. Writes out [x, H, D]. A row's result does not depend on the other rows' values."""
        ...
