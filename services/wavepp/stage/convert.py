"""Between the wire's messages and the core's. Checks what the core takes for granted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wavepp.core.cache.changes import CacheChanges, DumpPiece
from wavepp.core.cache.types import Missing, NeedKeys, Never, PoolUsage, Prepared, Room
from wavepp.core.errors import PeerProtocolError
from wavepp.core.ids import GrantId, PipelineEpoch, RoundId, WaveId
from wavepp.core.limits import CHUNK_KEYS_MAX, KEY_BYTES, ROUND_ATTEMPTS_MAX, TOKEN_BYTES, WAVE_REQUESTS_MAX
from wavepp.core.stage import events as sm
from wavepp.core.waves.types import StepTime
from wavepp.core.wire.types import FrameChunk
from wavepp.core.wire.wave_header import FrameHeader
from wavepp.stage.model.base import Buffer, Job, JobChunk, NamedTensor, SampledToken, Sampling
from wavepp.v1 import stage_pb2, types_pb2


def prepare_arrived(message: stage_pb2.Prepare) -> sm.PrepareArrived:
    """Raises PeerProtocolError for what no directory sends."""
    if len(message.grants) > ROUND_ATTEMPTS_MAX:
        raise PeerProtocolError(f"{len(message.grants)} grants in a round, at most {ROUND_ATTEMPTS_MAX}")
    grants = []
    for g in message.grants:
        if len(g.keys) % KEY_BYTES or len(g.key_before) != (KEY_BYTES if g.first_block else 0):
            raise PeerProtocolError(f"grant {g.grant}: keys of {len(g.keys)} and {len(g.key_before)} bytes")
        if not 0 < g.prompt_tokens <= g.total_tokens or g.endpoint_tokens >= g.prompt_tokens:
            raise PeerProtocolError(
                f"grant {g.grant}: endpoint {g.endpoint_tokens} of {g.prompt_tokens}, {g.total_tokens} in all"
            )
        grants.append(
            sm.PrepareGrant(
                grant=GrantId(g.grant),
                endpoint_tokens=g.endpoint_tokens,
                prompt_tokens=g.prompt_tokens,
                total_tokens=g.total_tokens,
                first_block=g.first_block,
                keys=g.keys,
                key_before=g.key_before,
                context=g.context,
            )
        )
    return sm.PrepareArrived(RoundId(message.round), PipelineEpoch(message.pipeline_epoch), tuple(grants))


def lower_arrived(message: stage_pb2.Lower) -> sm.LowerArrived:
    """A Lower as the core takes it."""
    return sm.LowerArrived(RoundId(message.round), tuple((GrantId(g.grant), g.endpoint_tokens) for g in message.grants))


def prepare_answer(
    round_id: RoundId, answers: Iterable[tuple[GrantId, sm.Answer]], room: Room
) -> stage_pb2.PrepareAnswer:
    """The answers to a Prepare or a Lower; refusals carry the number of the room that they were computed from."""
    return stage_pb2.PrepareAnswer(
        round=round_id, grants=[_grant_answer(grant, answer, room.number) for grant, answer in answers]
    )


def _grant_answer(grant: GrantId, answer: sm.Answer, room_number: int) -> stage_pb2.GrantAnswer:
    out = stage_pb2.GrantAnswer(grant=grant)
    match answer:
        case Prepared():
            out.prepared.endpoint_tokens = answer.endpoint_tokens
            out.prepared.snapshots.extend(answer.snapshots)
        case NeedKeys():
            out.need_keys.SetInParent()
        case Missing():
            out.missing.pool = answer.pool
            out.missing.available_needed = answer.available_needed
            out.missing.available = answer.available
            out.missing.room_number = room_number
        case Never():
            out.never.pool = answer.pool
            out.never.needed = answer.needed
            out.never.capacity = answer.capacity
        case sm.Refused():
            out.refused.reason = answer.reason
    return out


def wave_arrived(message: stage_pb2.Wave, arrived_ns: int) -> sm.WaveArrived:
    """A wave from the router, for stage 0. Raises PeerProtocolError when it contradicts itself."""
    if len(message.chunks) > WAVE_REQUESTS_MAX:
        raise PeerProtocolError(f"wave {message.wave} has {len(message.chunks)} chunks, at most {WAVE_REQUESTS_MAX}")
    chunks = []
    for c in message.chunks:
        if len(c.token_bytes) != c.length * TOKEN_BYTES or not c.length:
            raise PeerProtocolError(f"wave {message.wave}: {len(c.token_bytes)} token bytes for {c.length} tokens")
        if len(c.keys) % KEY_BYTES or len(c.keys) > CHUNK_KEYS_MAX * KEY_BYTES:
            raise PeerProtocolError(f"wave {message.wave}: keys of {len(c.keys)} bytes")
        chunks.append(FrameChunk(GrantId(c.grant), c.start, c.length, c.last, c.snapshot, c.decode, c.keys))
    return sm.WaveArrived(
        epoch=PipelineEpoch(message.epoch),
        wave=WaveId(message.wave),
        chunks=tuple(chunks),
        failed=(),
        ended=tuple(GrantId(g) for g in message.ended),
        steps=(),
        issued_ns=message.issued_unix_ns,
        payload=WavePayload(arrived_ns, b"".join(c.token_bytes for c in message.chunks), ()),
    )


class WavePayload:
    """What came with a wave: token bytes on stage 0, tensors elsewhere. `arrived_ns`: wall clock."""

    __slots__ = ("arrived_ns", "tensors", "tokens")

    def __init__(self, arrived_ns: int, tokens: bytes | None, tensors: tuple[NamedTensor, ...]) -> None:
        self.arrived_ns = arrived_ns
        self.tokens = tokens
        self.tensors = tensors


def wave_of_frame(header: FrameHeader, payload: memoryview, arrived_ns: int) -> sm.WaveArrived:
    """A wave from the stage before. `header` is verified and `payload` has its size."""
    tensors: list[NamedTensor] = []
    at = 0
    for spec in header.tensors:
        tensors.append((spec, payload[at : at + spec.nbytes]))
        at += spec.nbytes
    return sm.WaveArrived(
        epoch=header.epoch,
        wave=header.wave,
        chunks=header.chunks,
        failed=header.failed,
        ended=header.ended,
        steps=header.steps,
        issued_ns=header.issued_ns,
        payload=WavePayload(arrived_ns, None, tuple(tensors)),
    )


def frame_of_wave(wave: sm.SendWave) -> tuple[FrameHeader, Sequence[Buffer]]:
    """The frame for the next stage."""
    tensors: tuple[NamedTensor, ...] = wave.output if isinstance(wave.output, tuple) else ()
    header = FrameHeader(
        epoch=wave.epoch,
        wave=wave.wave,
        chunks=wave.chunks,
        failed=wave.failed,
        ended=wave.ended,
        tensors=tuple(spec for spec, _ in tensors),
        steps=wave.steps,
        issued_ns=wave.issued_ns,
    )
    return header, [buffer for _, buffer in tensors]


def model_job(run: sm.RunJob) -> Job:
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


def _model_chunk(chunk: sm.JobChunk) -> JobChunk:
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


def wave_done(report: sm.ReportWave) -> stage_pb2.WaveDone:
    """The last stage's report."""
    results = []
    for sample in report.samples:
        if not isinstance(sample, tuple) or not isinstance(sample[1], SampledToken):
            raise PeerProtocolError(f"wave {report.wave}: a sample that is none")
        grant, token = sample
        results.append(
            stage_pb2.TokenResult(
                grant=grant,
                token=token.token,
                logprob=token.logprob,
                top=[types_pb2.TokenLogprob(token=t, logprob=p) for t, p in token.top],
            )
        )
    return stage_pb2.WaveDone(
        wave=report.wave,
        epoch=report.epoch,
        steps=[step_time(s) for s in report.steps],
        results=results,
        failed=[stage_pb2.FailedGrant(grant=f.grant, stage=f.stage, reason=f.reason) for f in report.failed],
    )


def step_time(step: StepTime) -> types_pb2.StepTime:
    """One step for the wire."""
    return types_pb2.StepTime(
        stage=step.stage,
        start_unix_ns=step.start_ns,
        duration_ns=step.duration_ns,
        queued_ns=step.queued_ns,
        tokens=step.tokens,
    )


def room(found: Room) -> types_pb2.Room:
    """Room for the wire."""
    return types_pb2.Room(number=found.number, available=found.available)


def cache_changes(incarnation: str, changes: CacheChanges) -> stage_pb2.CacheChanges:
    """Changes for the wire."""
    return stage_pb2.CacheChanges(
        incarnation=incarnation,
        first=changes.first_number,
        gap=changes.gap,
        changes=[
            stage_pb2.CacheChange(kind=stage_pb2.CacheChange.Kind.ValueType(c.kind), key=c.key) for c in changes.changes
        ],
    )


def cache_dump(incarnation: str, piece: DumpPiece) -> stage_pb2.CacheDump:
    """A piece of a dump for the wire."""
    return stage_pb2.CacheDump(
        incarnation=incarnation,
        keys=piece.keys,
        snapshot_keys=piece.snapshot_keys,
        last=piece.last,
        next_change=piece.cursor,
    )


def pool_usage(name: str, usage: PoolUsage) -> types_pb2.PoolUsage:
    """A gauge for the wire."""
    return types_pb2.PoolUsage(
        pool=name,
        capacity=usage.capacity,
        free=usage.free,
        cached=usage.cached,
        pinned=usage.pinned,
        owned=usage.owned,
        reserved=usage.reserved,
    )
