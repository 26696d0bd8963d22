"""Which attention kernel serves which case."""

from __future__ import annotations

import torch
from torch import Tensor

from wavepp.stage.model.attention.base import AttentionBackend
from wavepp.stage.model.attention.two_part import TwoPart
from wavepp.stage.model.attention.whole_row import KEYS_MAX, WholeRow
from wavepp.stage.model.errors import ModelError


class ByLength:
    """`short` up to `keys_max` keys, `long` above."""

    def __init__(self, short: AttentionBackend, long: AttentionBackend, keys_max: int) -> None:
        self._short = short
        self._long = long
        self._keys_max = keys_max
        self.name = f"{short.name} up to {keys_max} keys, then {long.name}"

    def supports(self, dtype: torch.dtype, head_dim: int, device: torch.device) -> bool:
        return self._short.supports(dtype, head_dim, device) and self._long.supports(dtype, head_dim, device)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, start: int, scale: float, out: Tensor) -> None:
        """See AttentionBackend."""
        chosen = self._short if key.shape[0] <= self._keys_max else self._long
        chosen.attend(query, key, value, start, scale, out)


def select_attention(
    dtype: torch.dtype, head_dim: int, device: torch.device, *, amx: bool, name: str = "auto"
) -> AttentionBackend:
    """`name`: "auto", "whole_row" or "two_part". Raises ModelError when nothing fits.

    Measured: in bf16 whole rows win on avx512_bf16, and the flash kernel wins where there are matrix tiles; in fp32
    the flash kernel wins.
    """
    two_part = TwoPart(widen=dtype == torch.bfloat16 and not amx)
    whole_row = ByLength(WholeRow(), two_part, KEYS_MAX)
    by_name: dict[str, AttentionBackend] = {"whole_row": whole_row, "two_part": two_part}
    by_name["auto"] = whole_row if dtype == torch.bfloat16 and not amx else two_part
    if name not in by_name:
        raise ModelError(f"attention {name!r} is not known; choose {', '.join(sorted(by_name))}")
    backend = by_name[name]
    if not backend.supports(dtype, head_dim, device):
        raise ModelError(f"attention {backend.name} does not support {dtype} on {device}")
    return backend
