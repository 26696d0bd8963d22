"""The metadata of one packed batch, built with numpy: no Python loop over tokens or blocks. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wavepp.stage.model.base import Job, JobChunk, JobError

I64 = npt.NDArray[np.int64]

ROWS_MIN: Final = 16
"""Rows in the smallest batch. Below it matrix products take another path, whose rounding depends on the number of
rows: MKL's below 16 with AVX-512, 8 on other machines. A batch is filled up with rows that nobody reads."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where a chunk is: its rows in the batch, its keys among the gathered ones, its first absolute position."""

    row: int
    length: int
    key: int
    start: int

    @property
    def keys(self) -> int:
        """Keys that the chunk's last row sees."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """rows: of the chunks. rows_padded: with the filling. positions [rows_padded]: absolute. slots [rows_padded]:
    where each row is written in a pool of tokens. gather: blocks whose tokens, one after another, are the keys that
    `spans` index; empty when no chunk has a prefix (`fresh`): the batch's own rows are its keys then. spans: of the
    chunks, then of the filling (if any). last_rows: the last row of each chunk. source: rows of what came in,
    or None when they are all used in order."""

    rows: int
    rows_padded: int
    positions: I64
    slots: I64
    gather: I64
    spans: tuple[Span, ...]
    fresh: bool
    last_rows: I64
    source: I64 | None


def check_job(job: Job, blocks: int, block_tokens: int) -> None:
    """Raises JobError when a chunk is empty, or needs rows or blocks that do not exist, or a grant comes twice."""
    grants = set()
    for chunk in job.chunks:
        if chunk.length < 1 or chunk.start < 0 or chunk.row < 0 or chunk.row + chunk.length > job.rows_in:
            raise JobError(
                f"wave {job.wave}: grant {chunk.grant}: rows {chunk.row}+{chunk.length} of {job.rows_in}, start "
                f"{chunk.start}"
            )
        needed = -(-(chunk.start + chunk.length) // block_tokens)
        if len(chunk.table) < needed:
            raise JobError(
                f"wave {job.wave}: grant {chunk.grant}: block table of {len(chunk.table)} blocks, {needed} needed"
            )
        if min(chunk.table) < 0 or max(chunk.table) >= blocks:
            raise JobError(f"wave {job.wave}: grant {chunk.grant}: block table names a block beyond {blocks}")
        grants.add(chunk.grant)
    if len(grants) != len(job.chunks):
        raise JobError(f"wave {job.wave}: a grant has two chunks in one wave")


def plan_batch(chunks: tuple[JobChunk, ...], rows_in: int, block_tokens: int, scratch_block: int) -> BatchPlan:
    """Lay out `chunks` (checked, not none of them) in order; the filling goes to `scratch_block` and on behind it.

    The pool must have ROWS_MIN tokens from the scratch block's first on.
    """
    lengths: I64 = np.fromiter((c.length for c in chunks), np.int64, len(chunks))
    starts: I64 = np.fromiter((c.start for c in chunks), np.int64, len(chunks))
    sources: I64 = np.fromiter((c.row for c in chunks), np.int64, len(chunks))
    used = -(-(starts + lengths) // block_tokens)
    table_ends = np.cumsum(used)
    tables: I64 = np.fromiter(
        chain.from_iterable(c.table[:n] for c, n in zip(chunks, used.tolist(), strict=True)),
        np.int64,
        int(table_ends[-1]),
    )
    row_ends = np.cumsum(lengths)
    rows = int(row_ends[-1])
    inside = np.arange(rows) - np.repeat(row_ends - lengths, lengths)
    positions = inside + np.repeat(starts, lengths)
    source: Any = inside + np.repeat(sources, lengths)
    if rows == rows_in and bool((source == np.arange(rows)).all()):
        source = None
    first_block = np.repeat(table_ends - used, lengths)
    slots = tables[first_block + positions // block_tokens] * block_tokens + positions % block_tokens

    filling = max(ROWS_MIN - rows, 0)
    extra = np.arange(filling)
    fresh = not starts.any()
    key_firsts = row_ends - lengths if fresh else (table_ends - used) * block_tokens
    spans = [
        Span(int(row), c.length, int(key), c.start)
        for c, row, key in zip(chunks, row_ends - lengths, key_firsts, strict=True)
    ]
    gather: I64 = np.zeros(0, dtype=np.int64) if fresh else tables
    if filling:
        scratch = scratch_block + np.arange(-(-filling // block_tokens))
        spans.append(Span(rows, filling, rows if fresh else int(table_ends[-1]) * block_tokens, 0))
        gather = gather if fresh else np.concatenate((tables, scratch))
    return BatchPlan(
        rows=rows,
        rows_padded=rows + filling,
        positions=np.concatenate((positions, extra)),
        slots=np.concatenate((slots, scratch_block * block_tokens + extra)),
        gather=gather,
        spans=tuple(spans),
        fresh=fresh,
        last_rows=row_ends - 1,
        source=source,
    )
