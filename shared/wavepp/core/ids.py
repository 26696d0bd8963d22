"""Identifiers. Each is a distinct type, so that a wave number cannot be passed where a grant is meant."""

from __future__ import annotations

from typing import NewType

RequestId = NewType("RequestId", str)
"""Chosen by the client (or by the router when absent); unique among the requests in flight."""

GrantId = NewType("GrantId", int)
"""64 bits, never reused: the pipeline epoch in the upper 32, a counter in the lower 32. See `grant_id`."""

WaveId = NewType("WaveId", int)
"""Numbered per pipeline, growing without gaps inside one pipeline epoch."""

RoundId = NewType("RoundId", int)
"""An admission round, numbered by the directory within one directory epoch."""

StageIndex = NewType("StageIndex", int)
BlockId = NewType("BlockId", int)

PrefixKey = NewType("PrefixKey", bytes)
"""16 bytes that name a block by its own tokens and everything before it."""

PipelineEpoch = NewType("PipelineEpoch", int)
"""Counter in etcd; fences everything that was sent before something broke."""

DirectoryEpoch = NewType("DirectoryEpoch", int)
"""Create revision of the directory leader's key; fences an old directory."""

Incarnation = NewType("Incarnation", str)
"""A stage process's own identity, new at every start (and after it lost its etcd lease)."""

_COUNTER_BITS = 32


def grant_id(epoch: PipelineEpoch, counter: int) -> GrantId:
    """The id of the `counter`-th grant of `epoch`.

    Two routers never share an epoch, and a router never reuses a counter, so the id is never reused.
    """
    if not 0 <= counter < 1 << _COUNTER_BITS or not 0 < epoch < 1 << _COUNTER_BITS - 1:
        raise ValueError(f"grant counter {counter} or epoch {epoch} out of range")
    return GrantId(epoch << _COUNTER_BITS | counter)


def epoch_of(grant: GrantId) -> PipelineEpoch:
    """The pipeline epoch in which `grant` was made."""
    return PipelineEpoch(grant >> _COUNTER_BITS)
