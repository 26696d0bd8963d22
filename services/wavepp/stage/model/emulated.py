"""A model that computes nothing and takes as long as its profile says. Everything around it is real.

It checks the mesh that drives it: every stage keeps a fingerprint per token in a pool that it reads and writes
through the block tables it is given, and compares what it holds with what the stage before it held. Whatever was
computed on wrong state comes out as a failed grant or as a wrong token: the right ones follow from the prompt alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from wavepp.core.ids import GrantId
from wavepp.core.keys import digest
from wavepp.core.waves.cost import total
from wavepp.core.waves.types import ChosenToken
from wavepp.core.wire.types import NamedTensor, TensorSpec
from wavepp.profiles.profile import EMULATED, EmulatedFault, Profile
from wavepp.stage.model.base import (
    REASON_STATE_MISMATCH,
    Job,
    JobChunk,
    JobError,
    JobFailure,
    JobResult,
    MemoryReport,
    ModelFacts,
)
from wavepp.stage.model.batch import check_job
from wavepp.stage.model.fingerprints import U64, consistent, extend, tokens_between

_CARRIED = "fingerprint"
_FILLER = "filler"
_CARRIED_BYTES = 16

FAULT_EXIT_CODE: Final = 70
_HANG_POLL_S: Final = 3600.0


def model_name(profile: Profile) -> str:
    """What the mesh says that it serves: always labelled as emulated."""
    return profile.name if profile.name.startswith(EMULATED) else f"{EMULATED}-{profile.name}"


def fingerprint(profile: Profile) -> str:
    """Equal for profiles that behave alike in everything but time. Raises ProfileError."""
    model = profile.emulated()
    facts = (model_name(profile), str(model.layers), str(model.vocab_size), str(model.hidden_bytes))
    return digest("emulated model", (fact.encode() for fact in facts)).hex()[:32]


class EmulatedStage:
    """See StageModel. Boundary tensors: `fingerprint` uint64 [rows, 2] (of the token before, and of the row's own
    token) and `filler` uint8 [rows, hidden_bytes - 16] where the profile says that rows are larger."""

    def __init__(
        self,
        profile: Profile,
        *,
        stage: int,
        stages: int,
        first_layer: int,
        last_layer: int,
        blocks: int,
        block_tokens: int,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._profile = profile
        self._model = profile.emulated()
        self._cost = profile.stage_cost(stage, stages, (last_layer - first_layer) / self._model.layers)
        self._first = first_layer == 0
        self._last = last_layer == self._model.layers
        self._span = (first_layer, last_layer)
        self._blocks = blocks
        self._block_tokens = block_tokens
        self._pool: U64 = np.zeros((blocks, block_tokens), dtype=np.uint64)
        self._filler_bytes = self._model.hidden_bytes - _CARRIED_BYTES
        self._faults = {fault.token: fault for fault in self._model.faults if fault.stage == stage}
        self._clock_ns = clock_ns
        self._sleep = sleep

    def run(self, job: Job) -> JobResult:
        """See StageModel."""
        begun = self._clock_ns()
        check_job(job, self._blocks, self._block_tokens)
        tokens, carried = self._input(job)
        good: list[U64] = []
        samples: dict[GrantId, ChosenToken] = {}
        failed: list[JobFailure] = []
        for chunk in job.chunks:
            rows = self._step(chunk, tokens, carried)
            if rows is None:
                failed.append(JobFailure(chunk.grant, REASON_STATE_MISMATCH))
                continue
            if self._faults:
                self._fail_by(rows, chunk.start)
            good.append(rows)
            if self._last and chunk.sample is not None:
                token = int(rows[-1, 1]) % self._model.vocab_size
                top = ((token, 0.0),) if chunk.sample.top_logprobs > 0 else ()
                samples[chunk.grant] = ChosenToken(token, 0.0, top)
        tensors = () if self._last else self._output(good)
        work = total((chunk.start, chunk.length) for chunk in job.chunks)
        self._sleep_until(begun + round(1e6 * self._cost.step_ms(work)))
        return JobResult(tensors, samples, tuple(failed), self._clock_ns() - begun)

    def describe(self) -> ModelFacts:
        """See StageModel."""
        model = self._model
        return ModelFacts(
            model_name=model_name(self._profile),
            model_type=EMULATED,
            layers_total=model.layers,
            first_layer=self._span[0],
            last_layer=self._span[1],
            vocab_size=model.vocab_size,
            max_tokens=model.max_tokens,
            hidden_size=model.hidden_size,
            dtype=EMULATED,
            cache_dtype="uint64",
            block_tokens=self._block_tokens,
            alignment_tokens=self._block_tokens,
            fingerprint=fingerprint(self._profile),
            eos_token_ids=model.eos_token_ids,
            recurrent=False,
            boundary=(_CARRIED, _FILLER) if self._filler_bytes else (_CARRIED,),
            compute="emulated (no model is computed)",
        )

    def memory(self) -> MemoryReport:
        """See StageModel."""
        return MemoryReport(weights_bytes=0, pools_bytes=self._pool.nbytes, activation_bytes_max=0)

    def close(self) -> None:
        """See StageModel."""
        self._pool = np.zeros((0, self._block_tokens), dtype=np.uint64)

    def _input(self, job: Job) -> tuple[npt.NDArray[np.uint32] | None, U64 | None]:
        if self._first:
            if job.tokens is None:
                raise JobError(f"wave {job.wave}: no tokens for the first stage")
            return np.frombuffer(job.tokens, dtype="<u4"), None
        for spec, data in job.tensors:
            if spec.name == _CARRIED:
                return None, np.frombuffer(data, dtype="<u8").reshape(job.rows_in, 2)
        raise JobError(f"wave {job.wave}: tensor {_CARRIED!r} is missing")

    def _step(self, chunk: JobChunk, tokens: npt.NDArray[np.uint32] | None, carried: U64 | None) -> U64 | None:
        """Write the chunk's fingerprints to the pool; [length, 2], or None when the state is not the right one."""
        table = np.asarray(chunk.table, dtype=np.int64)
        held = self._pool[table[: -(-chunk.start // self._block_tokens)]].reshape(-1)[: chunk.start]
        before = held[-1] if chunk.start else np.uint64(0)
        if not consistent(held, self._model.vocab_size):
            return None
        own = slice(chunk.row, chunk.row + chunk.length)
        rows: U64
        if tokens is not None:
            after = extend(before, tokens[own], chunk.start)
            rows = np.column_stack((np.concatenate((np.asarray([before]), after[:-1])), after))
        else:
            assert carried is not None
            rows = carried[own]
            chained = bool((rows[1:, 0] == rows[:-1, 1]).all())
            if rows[0, 0] != before or not chained:
                return None
        positions = np.arange(chunk.start, chunk.start + chunk.length)
        self._pool[table[positions // self._block_tokens], positions % self._block_tokens] = rows[:, 1]
        return rows

    def _fail_by(self, rows: U64, start: int) -> None:
        """What the profile says that a step with one of these tokens does."""
        tokens = tokens_between(rows[:, 0], rows[:, 1], start)
        for token in np.unique(tokens).tolist():
            fault = self._faults.get(token)
            if fault is not None:
                self._fail(fault)

    def _fail(self, fault: EmulatedFault) -> None:
        match fault.does:
            case "raise":
                raise RuntimeError(f"the profile's fault for token {fault.token} on stage {fault.stage}")
            case "exit":
                os._exit(FAULT_EXIT_CODE)
            case "hang":
                while True:
                    self._sleep(_HANG_POLL_S)

    def _output(self, good: list[U64]) -> tuple[NamedTensor, ...]:
        rows = np.concatenate(good) if good else np.zeros((0, 2), dtype=np.uint64)
        data = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
        tensors: list[NamedTensor] = [(TensorSpec(_CARRIED, "uint64", rows.shape), data.data)]
        if self._filler_bytes:
            shape = (rows.shape[0], self._filler_bytes)
            filler = np.zeros(shape[0] * shape[1], dtype=np.uint8)
            tensors.append((TensorSpec(_FILLER, "uint8", shape), filler.data))
        return tuple(tensors)

    def _sleep_until(self, deadline_ns: int) -> None:
        while (left := deadline_ns - self._clock_ns()) > 0:
            self._sleep(left / 1e9)
