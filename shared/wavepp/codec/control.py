"""The control stream, between the router and a stage: epochs, waves, and what became of them."""

from __future__ import annotations

from typing import Final

from wavepp.codec.frames import WavePayload
from wavepp.codec.types import decode_grants, decode_room, decode_step, encode_room, encode_step
from wavepp.core.cache.types import Room
from wavepp.core.errors import PeerProtocolError
from wavepp.core.ids import GrantId, Incarnation, PipelineEpoch, StageIndex, WaveId
from wavepp.core.limits import CHUNK_KEYS_MAX, KEY_BYTES, TOKEN_BYTES, WAVE_REQUESTS_MAX
from wavepp.core.router import epochs as ep
from wavepp.core.router import events as router_ev
from wavepp.core.stage import events as stage_ev
from wavepp.core.waves.types import ChosenToken, FailedGrant
from wavepp.core.wire.types import FrameChunk
from wavepp.v1 import stage_pb2, types_pb2

LINK_LOST_CHARS_MAX: Final = 500

DRAINED: Final = stage_pb2.ControlCommand(drained=stage_pb2.Drained())
DRAINING: Final = stage_pb2.ControlEvent(draining=stage_pb2.Draining())

# ---- router -> stage ----


def encode_announce(announce: ep.Announce) -> stage_pb2.ControlCommand:
    """A new epoch, and where the next stage listens."""
    message = stage_pb2.SetEpoch(
        epoch=announce.epoch,
        next_link_address=announce.next_link_address,
        next_incarnation=announce.next_incarnation,
        report_steps=announce.report_steps,
    )
    return stage_pb2.ControlCommand(epoch=message)


def decode_announce(stage: StageIndex, message: stage_pb2.SetEpoch) -> ep.Announce:
    """See `encode_announce`. `stage` is the one that it came to."""
    return ep.Announce(
        stage, PipelineEpoch(message.epoch), message.next_link_address, message.next_incarnation, message.report_steps
    )


def encode_wave(issue: router_ev.IssueWave, issued_ns: int) -> stage_pb2.ControlCommand:
    """A wave for stage 0. `issued_ns`: the router's wall clock."""
    chunks = [
        stage_pb2.Chunk(
            grant=c.chunk.grant,
            start=c.chunk.start,
            length=c.chunk.length,
            last=c.chunk.last,
            snapshot=c.chunk.snapshot,
            decode=c.chunk.decode,
            token_bytes=c.token_bytes,
            keys=c.keys,
        )
        for c in issue.chunks
    ]
    message = stage_pb2.Wave(
        wave=issue.wave, epoch=issue.epoch, chunks=chunks, ended=issue.ended, issued_unix_ns=issued_ns
    )
    return stage_pb2.ControlCommand(wave=message)


def decode_wave(message: stage_pb2.Wave, arrived_ns: int) -> stage_ev.WaveArrived:
    """See `encode_wave`. `arrived_ns`: the stage's wall clock. Raises PeerProtocolError when it contradicts itself."""
    if len(message.chunks) > WAVE_REQUESTS_MAX:
        raise PeerProtocolError(f"wave {message.wave} has {len(message.chunks)} chunks, at most {WAVE_REQUESTS_MAX}")
    chunks = []
    for c in message.chunks:
        if len(c.token_bytes) != c.length * TOKEN_BYTES or not c.length:
            raise PeerProtocolError(f"wave {message.wave}: {len(c.token_bytes)} token bytes for {c.length} tokens")
        if len(c.keys) % KEY_BYTES or len(c.keys) > CHUNK_KEYS_MAX * KEY_BYTES:
            raise PeerProtocolError(f"wave {message.wave}: keys of {len(c.keys)} bytes")
        chunks.append(FrameChunk(GrantId(c.grant), c.start, c.length, c.last, c.snapshot, c.decode, c.keys))
    return stage_ev.WaveArrived(
        epoch=PipelineEpoch(message.epoch),
        wave=WaveId(message.wave),
        chunks=tuple(chunks),
        failed=(),
        ended=decode_grants(message.ended),
        steps=(),
        issued_ns=message.issued_unix_ns,
        payload=WavePayload(arrived_ns, b"".join(c.token_bytes for c in message.chunks), ()),
    )


# ---- stage -> router ----


def encode_hello(incarnation: Incarnation) -> stage_pb2.ControlEvent:
    """The answer to a router's hello."""
    return stage_pb2.ControlEvent(hello=stage_pb2.ControlHelloAck(incarnation=incarnation))


def encode_ack(ack: stage_ev.AckEpoch) -> stage_pb2.ControlEvent:
    """A stage holds the epoch."""
    return stage_pb2.ControlEvent(epoch=stage_pb2.EpochAck(epoch=ack.epoch))


def decode_ack(stage: StageIndex, message: stage_pb2.EpochAck) -> ep.Acked:
    """See `encode_ack`."""
    return ep.Acked(stage, PipelineEpoch(message.epoch))


def encode_step_done(report: stage_ev.ReportStep) -> stage_pb2.ControlEvent:
    """A stage has done a wave."""
    message = stage_pb2.StepDone(wave=report.wave, epoch=report.epoch, step=encode_step(report.step))
    return stage_pb2.ControlEvent(step=message)


def decode_step_done(stage: StageIndex, message: stage_pb2.StepDone) -> router_ev.StepDone:
    """See `encode_step_done`. The step's time comes again with the whole wave's."""
    return router_ev.StepDone(stage, PipelineEpoch(message.epoch), WaveId(message.wave))


def encode_wave_done(report: stage_ev.ReportWave) -> stage_pb2.ControlEvent:
    """The last stage has done a wave."""
    message = stage_pb2.WaveDone(
        wave=report.wave,
        epoch=report.epoch,
        steps=[encode_step(s) for s in report.steps],
        results=[_encode_result(grant, chosen) for grant, chosen in report.samples],
        failed=[stage_pb2.FailedGrant(grant=f.grant, stage=f.stage, reason=f.reason) for f in report.failed],
    )
    return stage_pb2.ControlEvent(wave=message)


def decode_wave_done(message: stage_pb2.WaveDone) -> router_ev.WaveDone:
    """See `encode_wave_done`."""
    return router_ev.WaveDone(
        epoch=PipelineEpoch(message.epoch),
        wave=WaveId(message.wave),
        results=tuple(_decode_result(r) for r in message.results),
        failed=tuple(FailedGrant(GrantId(f.grant), StageIndex(f.stage), f.reason) for f in message.failed),
        steps=tuple(decode_step(s) for s in message.steps),
    )


def _encode_result(grant: GrantId, chosen: ChosenToken) -> stage_pb2.TokenResult:
    top = [types_pb2.TokenLogprob(token=t, logprob=p) for t, p in chosen.top]
    return stage_pb2.TokenResult(grant=grant, token=chosen.token, logprob=chosen.logprob, top=top)


def _decode_result(message: stage_pb2.TokenResult) -> tuple[GrantId, ChosenToken]:
    top = tuple((t.token, t.logprob) for t in message.top)
    return GrantId(message.grant), ChosenToken(message.token, message.logprob, top)


def encode_room_report(room: Room) -> stage_pb2.ControlEvent:
    """What a stage has room for."""
    return stage_pb2.ControlEvent(room=encode_room(room))


def decode_room_report(stage: StageIndex, message: types_pb2.Room) -> router_ev.RoomChanged:
    """See `encode_room_report`."""
    return router_ev.RoomChanged(stage, decode_room(message))


def encode_link_lost(epoch: PipelineEpoch, reason: str) -> stage_pb2.ControlEvent:
    """A link of this epoch broke."""
    return stage_pb2.ControlEvent(link_lost=stage_pb2.LinkLost(epoch=epoch, reason=reason[:LINK_LOST_CHARS_MAX]))


def decode_link_lost(stage: StageIndex, message: stage_pb2.LinkLost) -> ep.LinkBroken:
    """See `encode_link_lost`."""
    return ep.LinkBroken(stage, PipelineEpoch(message.epoch), message.reason)
