"""Batch metadata against a naive oracle that goes token by token."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wavepp.stage.model.base import JobChunk
from wavepp.stage.model.batch import ROWS_MIN, plan_batch

SCRATCH = 1000


@st.composite
def batches(draw: st.DrawFn) -> tuple[tuple[JobChunk, ...], int, int]:
    """Chunks with disjoint tables, rows in order but with gaps; rows that came in; block size."""
    block_tokens = draw(st.integers(1, 9))
    fresh_blocks = iter(draw(st.permutations(range(200))))
    chunks, row = [], 0
    for grant in range(draw(st.integers(1, 4))):
        start, length = draw(st.integers(0, 20)), draw(st.integers(1, 12))
        blocks = -(-(start + length) // block_tokens) + draw(st.integers(0, 1))
        row += draw(st.integers(0, 3))
        table = tuple(next(fresh_blocks) for _ in range(blocks))
        chunks.append(JobChunk(grant, start, length, table, row))
        row += length
    return tuple(chunks), row + draw(st.integers(0, 2)), block_tokens


@given(batches())
def test_a_plan_places_every_token_where_its_block_table_says(
    batch: tuple[tuple[JobChunk, ...], int, int],
) -> None:
    chunks, rows_in, block_tokens = batch
    plan = plan_batch(chunks, rows_in, block_tokens, SCRATCH)
    positions, slots, source = [], [], []
    for chunk in chunks:
        for i in range(chunk.length):
            position = chunk.start + i
            positions.append(position)
            slots.append(chunk.table[position // block_tokens] * block_tokens + position % block_tokens)
            source.append(chunk.row + i)
    assert plan.rows == len(positions)
    assert plan.positions[: plan.rows].tolist() == positions
    assert plan.slots[: plan.rows].tolist() == slots
    used = list(range(rows_in)) if plan.source is None else plan.source.tolist()
    assert used == source
    assert [c - 1 for c in np.cumsum([c.length for c in chunks]).tolist()] == plan.last_rows.tolist()


@given(batches())
def test_the_gathered_keys_of_a_span_are_those_of_its_positions(
    batch: tuple[tuple[JobChunk, ...], int, int],
) -> None:
    chunks, rows_in, block_tokens = batch
    plan = plan_batch(chunks, rows_in, block_tokens, SCRATCH)
    if plan.fresh:
        assert all(c.start == 0 for c in chunks)
        gathered = plan.slots
    else:
        gathered = (plan.gather[:, None] * block_tokens + np.arange(block_tokens)).reshape(-1)
    for chunk, span in zip(chunks, plan.spans, strict=False):
        assert (span.length, span.start) == (chunk.length, chunk.start)
        keys = gathered[span.key : span.key + span.keys].tolist()
        assert keys == [chunk.table[p // block_tokens] * block_tokens + p % block_tokens for p in range(span.keys)]
        own = plan.slots[span.row : span.row + span.length].tolist()
        assert own == keys[chunk.start :]


@given(batches())
def test_the_filling_stays_in_the_scratch_area_and_makes_the_batch_large_enough(
    batch: tuple[tuple[JobChunk, ...], int, int],
) -> None:
    chunks, rows_in, block_tokens = batch
    plan = plan_batch(chunks, rows_in, block_tokens, SCRATCH)
    assert plan.rows_padded == max(plan.rows, ROWS_MIN) == plan.positions.size == plan.slots.size
    filling = plan.slots[plan.rows :] - SCRATCH * block_tokens
    assert filling.tolist() == list(range(plan.rows_padded - plan.rows))
    assert len(plan.spans) == len(chunks) + (plan.rows < ROWS_MIN)
    if plan.rows < ROWS_MIN:
        span = plan.spans[-1]
        gathered = plan.slots if plan.fresh else np.repeat(plan.gather, block_tokens) * block_tokens
        assert (span.row, span.start, span.length) == (plan.rows, 0, ROWS_MIN - plan.rows)
        assert (gathered[span.key : span.key + span.keys] >= SCRATCH * block_tokens).all()
        assert span.key + span.keys <= gathered.size
