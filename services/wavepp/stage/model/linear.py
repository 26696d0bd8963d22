"""Matrix products of the fast path."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

HEAD_ROWS: Final = 16
"""Rows of one product of the head. The rounding of a product may depend on its number of rows, and how many tokens
a wave ends with must not change a token; so it is always this number."""

_ROWS_TYPICAL: Final = 512
"""What the weight layout is chosen for; any number of rows works."""


class Linear:
    """x @ weight.T + bias, the weight in oneDNN's own layout where torch can do that.

    That alone is some per cent faster; and what follows the product (an activation, another operand) then runs in
    its last step, before the result is rounded, instead of in passes of its own.
    """

    __slots__ = ("_bias", "_weight", "nbytes", "packed")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.packed = packing_works(weight.dtype)
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._bias = bias
        # Without the clone a plain weight would keep its mapped file, and its pages, for ever.
        self._weight = _pack(weight) if self.packed else weight.clone()

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out]."""
        if self.packed:
            return _pointwise(x, self._weight, self._bias, "none")
        return F.linear(x, self._weight, self._bias)

    def silu(self, x: Tensor) -> Tensor:
        """silu(self(x))."""
        if self.packed:
            return _pointwise(x, self._weight, self._bias, "swish")
        return F.silu(F.linear(x, self._weight, self._bias))

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """self(x) * factor, factor [rows, out]."""
        if self.packed:
            return _binary(x, factor, self._weight, self._bias, "mul")
        return F.linear(x, self._weight, self._bias).mul_(factor)

    def plus(self, x: Tensor, summand: Tensor) -> Tensor:
        """self(x) + summand, summand [rows, out]."""
        if self.packed:
            return _binary(x, summand, self._weight, self._bias, "add")
        return F.linear(x, self._weight, self._bias).add_(summand)


def apply_head(rows: Tensor, weight: Tensor) -> Tensor:
    """Logits, float32 [rows, vocab]."""
    count = rows.shape[0]
    padded = F.pad(rows, (0, 0, 0, -count % HEAD_ROWS))
    logits = torch.cat([F.linear(group, weight) for group in torch.split(padded, HEAD_ROWS)])
    return logits[:count].float()


@cache
def packing_works(dtype: torch.dtype) -> bool:
    """Whether torch's private operators for packed weights are there and right for `dtype` on this machine."""
    weight = torch.linspace(-1, 1, 48 * 32).view(48, 32).to(dtype)
    x = torch.linspace(-1, 1, 16 * 32).view(16, 32).to(dtype)
    other = torch.linspace(-1, 1, 16 * 48).view(16, 48).to(dtype)
    plain = F.linear(x, weight)
    try:
        packed = _pack(weight)
        pairs = (
            (_pointwise(x, packed, None, "none"), plain),
            (_pointwise(x, packed, None, "swish"), F.silu(plain)),
            (_binary(x, other, packed, None, "mul"), plain * other),
            (_binary(x, other, packed, None, "add"), plain + other),
        )
    except (AttributeError, RuntimeError):
        return False
    return all(torch.allclose(a.float(), b.float(), rtol=2e-2, atol=5e-2) for a, b in pairs)


def _pack(weight: Tensor) -> Any:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_TYPICAL)


def _pointwise(x: Tensor, weight: Any, bias: Tensor | None, then: str) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "")
    return result


def _binary(x: Tensor, other: Tensor, weight: Any, bias: Tensor | None, then: str) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, weight, bias, then)
    return result
