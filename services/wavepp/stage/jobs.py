"""A frozen job of the sequencer, as the model takes it."""

from __future__ import annotations

from wavepp.codec.frames import WavePayload
from wavepp.core.errors import PeerProtocolError
from wavepp.core.limits import TOKEN_BYTES
from wavepp.core.stage import events as stage_ev
from wavepp.stage.model.base import Job, JobChunk, Sampling
from wavepp.v1 import types_pb2


def model_job(run: stage_ev.RunJob) -> Job:
    """A frozen job as the model takes it."""
    payload = run.payload
    if not isinstance(payload, WavePayload):
        raise PeerProtocolError(f"wave {run.wave} came without a payload")
    if payload.tokens is not None:
        rows_in = len(payload.tokens) // TOKEN_BYTES
    else:
        rows_in = payload.tensors[0][0].shape[0] if payload.tensors else 0
    return Job(
        wave=run.wave,
        chunks=tuple(_model_chunk(c) for c in run.chunks),
        rows_in=rows_in,
        tokens=payload.tokens,
        tensors=payload.tensors,
    )


def _model_chunk(chunk: stage_ev.PlacedChunk) -> JobChunk:
    sampling = None
    if chunk.sample:
        context = chunk.context
        wanted = context.sampling if isinstance(context, types_pb2.GrantContext) else types_pb2.Sampling()
        sampling = Sampling(
            temperature=wanted.temperature,
            top_p=wanted.top_p or 1.0,
            top_k=wanted.top_k,
            seed=wanted.seed,
            position=chunk.start + chunk.length,
            top_logprobs=wanted.top_logprobs,
        )
    return JobChunk(chunk.grant, chunk.start, chunk.length, chunk.table, chunk.row, sampling)
