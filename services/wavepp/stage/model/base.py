"""What a stage asks of a model, and what it gets back. Imports no torch: an emulated stage needs none.

A job is one wave as one stage sees it, frozen by the talking thread before the executor runs it. Everything that
crosses a cut has one row per token as its first dimension, so that a stage can drop the rows of a failed grant
without knowing the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from wavepp.core.errors import WaveppError
from wavepp.core.ids import GrantId
from wavepp.core.waves.types import ChosenToken
from wavepp.core.wire.types import Buffer, NamedTensor

REASON_NONFINITE: Final = "output is not finite"
REASON_STATE_MISMATCH: Final = "state mismatch"


class JobError(WaveppError):
    """A job contradicts itself or the pools (a fault in the program, never in a request)."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the token after a chunk is chosen.

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off. seed and position (of the token that is chosen)
    make the choice repeatable: a re-run gives the same token. top_logprobs: how many of the likeliest to report.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    position: int = 0
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class JobChunk:
    """`length` consecutive tokens of one grant, from absolute position `start` on.

    table: the blocks that cover [0, start + length), first block first. row: where the chunk's rows begin in what
    came in. sample: set on the last stage when a token is wanted after the chunk's last row.
    """

    grant: GrantId
    start: int
    length: int
    table: tuple[int, ...]
    row: int
    sample: Sampling | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One wave for one stage. `tokens` (token bytes, 4 a row) on stage 0, `tensors` on every other stage.

    rows_in: rows in what came in; chunks need not use all of them (rows of a grant that this stage refuses).
    """

    wave: int
    chunks: tuple[JobChunk, ...]
    rows_in: int
    tokens: Buffer | None = None
    tensors: Sequence[NamedTensor] = ()


@dataclass(frozen=True, slots=True)
class JobFailure:
    """A grant whose rows were left out of the result, and why. Nothing of its chunk may be published."""

    grant: GrantId
    reason: str


@dataclass(frozen=True, slots=True)
class JobResult:
    """tensors: rows of the good chunks, in the order of the chunks (empty on the last stage).

    samples: by grant, for the good chunks that asked. failed: grants with a wrong or a non-finite outcome.
    duration_ns: time on the executor.
    """

    tensors: tuple[NamedTensor, ...]
    samples: dict[GrantId, ChosenToken]
    failed: tuple[JobFailure, ...]
    duration_ns: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the rest of the mesh must know about a stage's model. `last_layer` is exclusive.

    max_tokens: longest prompt plus output. fingerprint: equal on stages that serve the same weights, and part of
    every prefix key. alignment_tokens: chunk ends and reuse endpoints are multiples of it. boundary: names of the
    tensors that cross the cut behind this stage. compute: kernels in use, for people.
    """

    model_name: str
    model_type: str
    layers_total: int
    first_layer: int
    last_layer: int
    vocab_size: int
    max_tokens: int
    hidden_size: int
    dtype: str
    cache_dtype: str
    block_tokens: int
    alignment_tokens: int
    fingerprint: str
    eos_token_ids: tuple[int, ...]
    recurrent: bool
    boundary: tuple[str, ...]
    compute: str = ""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes. weights_bytes counts what is resident for the weights; pages that are mapped from the checkpoint's
    files count too. activation_bytes_max: what the largest wave needs beside weights and pools (an upper bound)."""

    weights_bytes: int
    pools_bytes: int
    activation_bytes_max: int


class StageModel(Protocol):
    """Layers [first, last) of a model with their pools. `run` is called on the executor thread only, in order."""

    def run(self, job: Job) -> JobResult:
        """Run one wave. Raises JobError when the job is impossible; a bad grant is a JobFailure instead."""
        ...

    def describe(self) -> ModelFacts: ...

    def memory(self) -> MemoryReport: ...

    def close(self) -> None:
        """Let go of weights and pools. The model cannot run afterwards."""
        ...
