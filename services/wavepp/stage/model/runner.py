"""Running jobs on layers that torch computes, whichever implementation of the layers it is."""

from __future__ import annotations

import time
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wavepp.core.ids import GrantId
from wavepp.core.waves.types import ChosenToken
from wavepp.core.wire.types import NamedTensor, TensorSpec
from wavepp.stage.model.base import (
    REASON_NONFINITE,
    Job,
    JobChunk,
    JobError,
    JobFailure,
    JobResult,
    MemoryReport,
    ModelFacts,
)
from wavepp.stage.model.batch import BatchPlan, check_job, plan_batch
from wavepp.stage.model.checkpoint import Checkpoint
from wavepp.stage.model.compute import Compute
from wavepp.stage.model.linear import HEAD_ROWS
from wavepp.stage.model.pools import BatchTensors, PagedPools
from wavepp.stage.model.sampling import sample

Bytes = npt.NDArray[np.uint8]

_SCRATCH_BYTES: Final = 32 << 20
"""What kernels and the allocator take beside the tensors: generated code, work areas, rounding (observed)."""


class Forward(Protocol):
    """The layers of one stage. All tensors are [rows, ...], rows of all chunks one after another."""

    @property
    def description(self) -> str:
        """What computes, for people."""
        ...

    @property
    def weights_bytes(self) -> int: ...

    def embed(self, ids: Tensor) -> Tensor: ...

    def layers(self, hidden: Tensor, batch: BatchTensors) -> Tensor: ...

    def head(self, rows: Tensor) -> Tensor: ...


class TorchStage:
    """See StageModel. One boundary tensor: `hidden` [rows, hidden] in the compute dtype."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        first_layer: int,
        last_layer: int,
        compute: Compute,
        pools: PagedPools,
        forward: Forward,
        wave_tokens_max: int,
    ) -> None:
        self._checkpoint = checkpoint
        self._span = (first_layer, last_layer)
        self._first = first_layer == 0
        self._last = last_layer == checkpoint.shape.layers
        self._compute = compute
        self._pools = pools
        self._forward: Forward | None = forward
        self._wave_tokens_max = wave_tokens_max
        shape, adapter = checkpoint.shape, checkpoint.adapter
        self._boundary = "hidden"
        self._facts = ModelFacts(
            model_name=checkpoint.name,
            model_type=adapter.model_type,
            layers_total=shape.layers,
            first_layer=first_layer,
            last_layer=last_layer,
            vocab_size=shape.vocab,
            max_tokens=shape.max_tokens,
            hidden_size=shape.hidden,
            dtype=compute.dtype_name,
            cache_dtype=compute.dtype_name,
            block_tokens=pools.block_tokens,
            alignment_tokens=int(np.lcm(pools.block_tokens, adapter.alignment_tokens)),
            fingerprint=checkpoint.fingerprint,
            eos_token_ids=checkpoint.eos_token_ids,
            recurrent=False,
            boundary=(self._boundary,),
            compute=f"{compute.dtype_name}, {forward.description}",
        )

    @torch.inference_mode()
    def run(self, job: Job) -> JobResult:
        """See StageModel."""
        begun = time.perf_counter_ns()
        check_job(job, self._pools.blocks, self._pools.block_tokens)
        if self._forward is None:
            raise JobError(f"wave {job.wave}: the model is closed")
        if not job.chunks:
            empty = () if self._last else (self._tensor(torch.empty(0, self._checkpoint.shape.hidden)),)
            return JobResult(empty, {}, (), time.perf_counter_ns() - begun)
        plan = plan_batch(job.chunks, job.rows_in, self._pools.block_tokens, self._pools.scratch_block)
        hidden = self._embed(job, plan, self._forward) if self._first else self._received(job, plan)
        hidden = self._forward.layers(hidden, BatchTensors(plan))[: plan.rows]
        finite = _finite_chunks(hidden, plan)
        samples: dict[GrantId, ChosenToken] = {}
        tensors: tuple[NamedTensor, ...] = ()
        if self._last:
            samples = self._sample(job.chunks, plan, hidden, finite, self._forward)
        else:
            tensors = (self._tensor(_rows_of(hidden, job.chunks, finite)),)
        failed = tuple(
            JobFailure(c.grant, REASON_NONFINITE) for c, ok in zip(job.chunks, finite, strict=True) if not ok
        )
        return JobResult(tensors, samples, failed, time.perf_counter_ns() - begun)

    def describe(self) -> ModelFacts:
        """See StageModel."""
        return self._facts

    def memory(self) -> MemoryReport:
        """See StageModel."""
        weights = 0 if self._forward is None else self._forward.weights_bytes
        return MemoryReport(weights, self._pools.nbytes, self._activation_bytes_max())

    def close(self) -> None:
        """See StageModel."""
        self._forward = None
        self._pools.keys.clear()
        self._pools.values.clear()

    def _embed(self, job: Job, plan: BatchPlan, forward: Forward) -> Tensor:
        if job.tokens is None:
            raise JobError(f"wave {job.wave}: no tokens for the first stage")
        tokens = np.frombuffer(job.tokens, dtype="<u4")
        if tokens.size != job.rows_in:
            raise JobError(f"wave {job.wave}: {tokens.size} tokens for {job.rows_in} rows")
        ids = np.zeros(plan.rows_padded, dtype=np.int64)
        ids[: plan.rows] = tokens if plan.source is None else tokens[plan.source]
        if int(ids.max()) >= self._checkpoint.shape.vocab:
            raise JobError(f"wave {job.wave}: token {int(ids.max())} is not below {self._checkpoint.shape.vocab}")
        return forward.embed(torch.from_numpy(ids))

    def _received(self, job: Job, plan: BatchPlan) -> Tensor:
        """The rows that came in, copied: layers may overwrite them, and the frame's buffer is not ours to keep."""
        width = self._checkpoint.shape.hidden
        expected = TensorSpec(self._boundary, self._compute.dtype_name, (job.rows_in, width))
        for spec, data in job.tensors:
            if spec.name != self._boundary:
                continue
            if (spec.dtype, tuple(spec.shape)) != (expected.dtype, expected.shape):
                raise JobError(f"wave {job.wave}: got {spec}, expected {expected}")
            incoming = np.frombuffer(data, dtype=np.uint8).reshape(job.rows_in, -1)
            hidden = torch.empty(plan.rows_padded, width, dtype=self._compute.dtype)
            hidden[plan.rows :] = 0
            target: Bytes = hidden.view(torch.uint8).numpy()
            if plan.source is None:
                target[: plan.rows] = incoming
            else:
                np.take(incoming, plan.source, axis=0, out=target[: plan.rows])
            return hidden
        raise JobError(f"wave {job.wave}: tensor {self._boundary!r} is missing")

    def _sample(
        self,
        chunks: tuple[JobChunk, ...],
        plan: BatchPlan,
        hidden: Tensor,
        finite: npt.NDArray[np.bool_],
        forward: Forward,
    ) -> dict[GrantId, ChosenToken]:
        """Tokens of the finite chunks that want one. A chunk whose logits are not finite is marked in `finite`."""
        asked = [i for i, c in enumerate(chunks) if c.sample is not None and finite[i]]
        if not asked:
            return {}
        logits = forward.head(hidden[torch.from_numpy(plan.last_rows[asked])]).numpy()
        samples: dict[GrantId, ChosenToken] = {}
        for i, row in zip(asked, logits, strict=True):
            sampling = chunks[i].sample
            if not np.isfinite(row).all():
                finite[i] = False
            elif sampling is not None:
                samples[chunks[i].grant] = sample(row, sampling)
        return samples

    def _tensor(self, rows: Tensor) -> NamedTensor:
        rows = rows.to(self._compute.dtype).contiguous()
        data = rows.view(torch.uint8).numpy().reshape(-1).data
        return TensorSpec(self._boundary, self._compute.dtype_name, tuple(rows.shape)), data

    def _activation_bytes_max(self) -> int:
        """What the largest wave needs at once, by the sizes of the tensors that are alive together (an estimate
        from above: all keys of the pool gathered, twice because of a copy by head)."""
        shape, item = self._checkpoint.shape, self._compute.dtype.itemsize
        rows = max(self._wave_tokens_max, HEAD_ROWS)
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        per_row = item * (4 * shape.hidden + 3 * shape.intermediate + 3 * queries + 3 * keys)
        rotation = 4 * rows * 3 * (queries + keys)
        keys_seen = min(self._pools.blocks * self._pools.block_tokens, shape.max_tokens) + rows
        gathered = 4 * keys_seen * keys * item
        scores = 2 * 64 * (shape.heads // shape.kv_heads) * min(keys_seen, 16384) * 4
        head = 3 * HEAD_ROWS * shape.vocab * 4 if self._last else 0
        return rows * per_row + rotation + gathered + scores + head + _SCRATCH_BYTES


def _finite_chunks(hidden: Tensor, plan: BatchPlan) -> npt.NDArray[np.bool_]:
    """For every chunk whether all of its rows are finite."""
    rows: npt.NDArray[np.bool_] = torch.isfinite(hidden).all(dim=1).numpy()
    firsts = np.concatenate(([0], plan.last_rows[:-1] + 1))
    result: npt.NDArray[np.bool_] = np.logical_and.reduceat(rows, firsts)
    return result


def _rows_of(hidden: Tensor, chunks: tuple[JobChunk, ...], good: npt.NDArray[np.bool_]) -> Tensor:
    if good.all():
        return hidden
    keep = np.repeat(good, [c.length for c in chunks])
    return hidden[torch.from_numpy(keep)]
