"""Between the wire's messages and the core's."""

from __future__ import annotations

from wavepp.core.cache.types import Room
from wavepp.core.directory import events as am
from wavepp.core.directory.endpoint import ReuseExplanation
from wavepp.core.errors import InvariantError, PeerProtocolError
from wavepp.core.ids import GrantId, PipelineEpoch, StageIndex, WaveId
from wavepp.core.router import events as dm
from wavepp.core.router.requests import ChosenToken, Outcome
from wavepp.core.waves.types import FailedGrant, StepTime
from wavepp.v1 import directory_pb2, prefill_pb2, stage_pb2, types_pb2


def admission_command(instruction: dm.Instruction) -> directory_pb2.AdmissionCommand:
    """What the dispatcher says to the directory."""
    match instruction:
        case dm.SendAdmit():
            attempts = [
                directory_pb2.AdmitAttempt(
                    grant=a.grant,
                    prompt_tokens=a.prompt_tokens,
                    total_tokens=a.total_tokens,
                    keys=a.keys,
                    context=a.context if isinstance(a.context, types_pb2.GrantContext) else None,
                )
                for a in instruction.attempts
            ]
            admit = directory_pb2.Admit(batch=instruction.batch, pipeline_epoch=instruction.epoch, attempts=attempts)
            return directory_pb2.AdmissionCommand(admit=admit)
        case dm.SendCancel(grants=grants):
            return directory_pb2.AdmissionCommand(cancel=directory_pb2.CancelAttempts(grants=grants))
        case dm.SendComputed(grants=grants):
            return directory_pb2.AdmissionCommand(computed=directory_pb2.Computed(grants=grants))
        case dm.SendEnded(grants=grants):
            return directory_pb2.AdmissionCommand(ended=directory_pb2.GrantsEnded(grants=grants))
        case _:
            raise InvariantError(f"{type(instruction).__name__} is not for the directory")


def decided(message: directory_pb2.Decisions) -> dm.Decided:
    """A batch's decisions."""
    told = tuple((GrantId(d.grant), _verdict(d)) for d in message.decisions)
    return dm.Decided(message.batch, told, message.answered)


def _verdict(d: directory_pb2.Decision) -> am.Verdict:
    match d.WhichOneof("decision"):
        case "granted":
            return am.Granted(d.granted.endpoint_tokens, _explanation(d.granted.reuse))
        case "wait":
            stage = StageIndex(d.wait.stage) if d.wait.HasField("stage") else None
            return am.Wait(stage, d.wait.pool, d.wait.available_needed, d.wait.room_number)
        case "never":
            return am.NeverFits(StageIndex(d.never.stage), d.never.pool, d.never.needed, d.never.capacity)
        case "void":
            return am.Void(d.void.reason)
    raise PeerProtocolError(f"grant {d.grant}: a decision without content")


def _explanation(reuse: types_pb2.ReuseExplanation) -> ReuseExplanation:
    return ReuseExplanation(
        reuse.prompt_tokens,
        reuse.longest_any_tokens,
        reuse.longest_all_tokens,
        reuse.after_snapshots_tokens,
        reuse.endpoint_tokens,
        StageIndex(reuse.limiting_stage) if reuse.HasField("limiting_stage") else None,
    )


def wave(issue: dm.IssueWave, issued_ns: int) -> stage_pb2.Wave:
    """A wave for stage 0."""
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
    return stage_pb2.Wave(
        wave=issue.wave, epoch=issue.epoch, chunks=chunks, ended=issue.ended, issued_unix_ns=issued_ns
    )


def step_done(message: stage_pb2.StepDone) -> dm.StepDone:
    """Stage 0 has done a wave."""
    return dm.StepDone(PipelineEpoch(message.epoch), WaveId(message.wave))


def wave_done(message: stage_pb2.WaveDone) -> dm.WaveDone:
    """The last stage has done a wave."""
    return dm.WaveDone(
        epoch=PipelineEpoch(message.epoch),
        wave=WaveId(message.wave),
        results=tuple(
            (GrantId(r.grant), ChosenToken(r.token, r.logprob, tuple((t.token, t.logprob) for t in r.top)))
            for r in message.results
        ),
        failed=tuple(FailedGrant(GrantId(f.grant), StageIndex(f.stage), f.reason) for f in message.failed),
        steps=tuple(
            StepTime(StageIndex(s.stage), s.start_unix_ns, s.duration_ns, s.queued_ns, s.tokens) for s in message.steps
        ),
    )


def room_changed(stage: int, message: types_pb2.Room) -> dm.RoomChanged:
    """A stage's room."""
    return dm.RoomChanged(stage, Room(message.number, dict(message.available)))


def response(outcome: Outcome, text: str) -> prefill_pb2.PrefillResponse:
    """The answer to a client."""
    times, first = outcome.times, outcome.tokens[0]
    reuse = outcome.reuse
    explained = types_pb2.ReuseExplanation(
        prompt_tokens=reuse.prompt_tokens,
        longest_any_tokens=reuse.longest_any_tokens,
        longest_all_tokens=reuse.longest_all_tokens,
        after_snapshots_tokens=reuse.after_snapshots_tokens,
        endpoint_tokens=reuse.endpoint_tokens,
        limiting_stage=reuse.limiting_stage,
        waits=outcome.waits,
        waited_for_stage=outcome.waited_for[0],
        waited_for_pool=outcome.waited_for[1],
    )
    return prefill_pb2.PrefillResponse(
        request_id=outcome.request,
        token_ids=[t.token for t in outcome.tokens],
        text=text,
        finish_reason=outcome.finish_reason,
        prompt_tokens=outcome.prompt_tokens,
        cached_tokens=outcome.cached_tokens,
        computed_tokens=outcome.computed_tokens,
        completion_tokens=len(outcome.tokens),
        reuse=explained,
        timing=prefill_pb2.Timing(
            queue_ms=times.asked - times.arrived,
            admission_ms=times.granted - times.asked,
            prefill_ms=times.first_token - times.granted,
            first_token_ms=times.first_token - times.arrived,
            total_ms=times.done - times.arrived,
        ),
        waves=outcome.waves,
        attempts=outcome.attempts,
        first_token=types_pb2.TokenLogprob(token=first.token, logprob=first.logprob),
        first_token_top=[types_pb2.TokenLogprob(token=t, logprob=p) for t, p in first.top],
    )
