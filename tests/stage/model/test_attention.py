"""Attention kernels against scaled_dot_product_attention in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from wavepp.stage.model.attention.base import AttentionBackend
from wavepp.stage.model.attention.select import ByLength, select_attention
from wavepp.stage.model.attention.two_part import TwoPart
from wavepp.stage.model.attention.whole_row import WholeRow
from wavepp.stage.model.errors import ModelError

CPU = torch.device("cpu")
SHAPES = ((9, 3, 64), (4, 4, 32), (8, 1, 128))
BACKENDS: dict[str, AttentionBackend] = {
    "whole_row": WholeRow(),
    "two_part": TwoPart(widen=False),
    "two_part_widened": TwoPart(widen=True),
}


def inputs(heads: int, kv_heads: int, dim: int, start: int, rows: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(start + rows)
    query = torch.randn(rows, heads + 2, dim)[:, :heads]
    return query, torch.randn(start + rows, kv_heads, dim), torch.randn(start + rows, kv_heads, dim)


def reference(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, start: int) -> torch.Tensor:
    rows, seen = query.shape[0], key.shape[0]
    mask = torch.ones(rows, seen, dtype=torch.bool).tril(start)
    q, k, v = (t.transpose(0, 1).unsqueeze(0).double() for t in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out[0].transpose(0, 1)


def attend(backend: AttentionBackend, parts: tuple[torch.Tensor, ...], start: int) -> torch.Tensor:
    query, key, value = parts
    out = torch.empty(query.shape, dtype=query.dtype)
    backend.attend(query, key, value, start, query.shape[-1] ** -0.5, out)
    return out


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("start", "rows"), [(0, 1), (0, 65), (37, 1), (64, 130), (100, 77), (1100, 70)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 3e-2)])
def test_a_kernel_is_exact_to_its_element_type(
    backend: str, shape: tuple[int, int, int], start: int, rows: int, dtype: torch.dtype, tolerance: float
) -> None:
    parts = tuple(t.to(dtype) for t in inputs(*shape, start, rows))
    error = attend(BACKENDS[backend], parts, start).double() - reference(parts[0], parts[1], parts[2], start)
    assert error.abs().max() <= tolerance


@pytest.mark.parametrize("dtype", [torch.float32])
def test_whole_rows_give_the_same_bits_on_every_grid_of_whole_query_blocks(dtype: torch.dtype) -> None:
    query, key, value = (t.to(dtype) for t in inputs(9, 3, 64, 0, 320))
    whole = attend(WholeRow(), (query, key, value), 0)
    for grid in (64, 128, 192):
        for start in range(0, 320, grid):
            stop = min(start + grid, 320)
            part = attend(WholeRow(), (query[start:stop], key[:stop], value[:stop]), start)
            assert torch.equal(part, whole[start:stop])


def test_keys_beyond_a_row_do_not_reach_it() -> None:
    query, key, value = inputs(4, 2, 32, 50, 40)
    for backend in (WholeRow(), TwoPart(widen=False)):
        clean = attend(backend, (query, key, value), 50)
        value[80:] = 1e30
        assert torch.equal(attend(backend, (query, key, value), 50)[:30], clean[:30])
        value[80:] = 0.0
        key, value = key.clone(), torch.randn_like(value)


def test_selection_follows_the_element_type_and_the_machine() -> None:
    def chosen(dtype: torch.dtype, *, amx: bool) -> str:
        return select_attention(dtype, 64, CPU, amx=amx).name

    assert chosen(torch.bfloat16, amx=False).startswith("whole_row")
    assert chosen(torch.bfloat16, amx=True) == "two_part"
    assert chosen(torch.float32, amx=True) == chosen(torch.float32, amx=False) == "two_part"
    with pytest.raises(ModelError, match="choose auto, two_part, whole_row"):
        select_attention(torch.float32, 64, CPU, amx=False, name="fancy")
    with pytest.raises(ModelError, match="does not support"):
        select_attention(torch.float64, 64, CPU, amx=False)


def test_rows_that_are_too_long_go_to_the_other_kernel() -> None:
    parts = inputs(4, 2, 32, 20, 12)
    split = ByLength(WholeRow(), TwoPart(widen=False), keys_max=32)
    assert torch.equal(attend(split, parts, 20), attend(WholeRow(), parts, 20))
    longer = inputs(4, 2, 32, 21, 12)
    assert torch.equal(attend(split, longer, 21), attend(TwoPart(widen=False), longer, 21))
