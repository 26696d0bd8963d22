"""The admission stream, between the router and the directory.

Hellos and health are read field by field where they are checked, and have no counterpart in the core.
"""

from __future__ import annotations

from wavepp.codec.types import decode_grants, decode_reason, decode_reuse, decode_word, encode_reuse
from wavepp.core.directory import events as directory_ev
from wavepp.core.errors import InvariantError, PeerProtocolError
from wavepp.core.ids import GrantId, PipelineEpoch, StageIndex
from wavepp.core.limits import KEY_BYTES, ROUND_ATTEMPTS_MAX
from wavepp.core.router import events as router_ev
from wavepp.v1 import directory_pb2, types_pb2

# ---- router -> directory ----


def encode_command(
    instruction: router_ev.Instruction | directory_ev.EpochMoved,
) -> directory_pb2.AdmissionCommand:
    """What the dispatcher has to say to the directory. Raises InvariantError for what is not for it."""
    match instruction:
        case router_ev.SendAdmit():
            attempts = [_encode_attempt(attempt) for attempt in instruction.attempts]
            admit = directory_pb2.Admit(batch=instruction.batch, pipeline_epoch=instruction.epoch, attempts=attempts)
            return directory_pb2.AdmissionCommand(admit=admit)
        case router_ev.SendCancel(grants=grants):
            return directory_pb2.AdmissionCommand(cancel=directory_pb2.CancelAttempts(grants=grants))
        case router_ev.SendComputed(grants=grants):
            return directory_pb2.AdmissionCommand(computed=directory_pb2.Computed(grants=grants))
        case router_ev.SendEnded(grants=grants):
            return directory_pb2.AdmissionCommand(ended=directory_pb2.GrantsEnded(grants=grants))
        case directory_ev.EpochMoved(epoch=epoch):
            return directory_pb2.AdmissionCommand(epoch=directory_pb2.EpochMoved(pipeline_epoch=epoch))
        case _:
            raise InvariantError(f"{type(instruction).__name__} is not for the directory")


def decode_command(message: directory_pb2.AdmissionCommand, block_tokens: int) -> directory_ev.Event:
    """See `encode_command`. `block_tokens`: of the pipeline. Raises PeerProtocolError for what no router sends."""
    match message.WhichOneof("command"):
        case "admit":
            return _decode_admit(message.admit, block_tokens)
        case "cancel":
            return directory_ev.CancelAttempts(decode_grants(message.cancel.grants))
        case "computed":
            return directory_ev.GrantsComputed(decode_grants(message.computed.grants))
        case "ended":
            return directory_ev.GrantsEnded(decode_grants(message.ended.grants))
        case "epoch":
            return directory_ev.EpochMoved(PipelineEpoch(message.epoch.pipeline_epoch))
        case other:
            raise PeerProtocolError(f"unexpected command {other!r} on the admission stream")


def _encode_attempt(attempt: directory_ev.Attempt) -> directory_pb2.AdmitAttempt:
    return directory_pb2.AdmitAttempt(
        grant=attempt.grant,
        prompt_tokens=attempt.prompt_tokens,
        total_tokens=attempt.total_tokens,
        keys=attempt.keys,
        context=attempt.context if isinstance(attempt.context, types_pb2.GrantContext) else None,
    )


def _decode_admit(message: directory_pb2.Admit, block_tokens: int) -> directory_ev.Admit:
    if len(message.attempts) > ROUND_ATTEMPTS_MAX:
        raise PeerProtocolError(f"{len(message.attempts)} attempts in a batch, at most {ROUND_ATTEMPTS_MAX}")
    attempts = []
    for a in message.attempts:
        if len(a.keys) != a.prompt_tokens // block_tokens * KEY_BYTES or not 0 < a.prompt_tokens <= a.total_tokens:
            raise PeerProtocolError(
                f"grant {a.grant}: {len(a.keys)} bytes of keys for {a.prompt_tokens} of {a.total_tokens} tokens"
            )
        attempts.append(directory_ev.Attempt(GrantId(a.grant), a.prompt_tokens, a.total_tokens, a.keys, a.context))
    return directory_ev.Admit(message.batch, PipelineEpoch(message.pipeline_epoch), tuple(attempts))


# ---- directory -> router ----


def encode_decide(decide: directory_ev.Decide) -> directory_pb2.AdmissionEvent:
    """What the router hears of a batch."""
    decisions = [_encode_verdict(grant, verdict) for grant, verdict in decide.decisions]
    return directory_pb2.AdmissionEvent(
        decisions=directory_pb2.Decisions(batch=decide.batch, decisions=decisions, answered=decide.answered)
    )


def decode_decisions(message: directory_pb2.Decisions) -> router_ev.Decided:
    """See `encode_decide`. Raises PeerProtocolError for a decision without content, or an unknown one."""
    decisions = tuple((GrantId(d.grant), _decode_verdict(d)) for d in message.decisions)
    return router_ev.Decided(message.batch, decisions, message.answered)


def _encode_verdict(grant: GrantId, verdict: directory_ev.Verdict) -> directory_pb2.Decision:
    out = directory_pb2.Decision(grant=grant)
    match verdict:
        case directory_ev.Granted():
            out.granted.endpoint_tokens = verdict.endpoint_tokens
            out.granted.reuse.CopyFrom(encode_reuse(verdict.reuse))
        case directory_ev.Wait():
            if verdict.stage is not None:
                out.wait.stage = verdict.stage
            out.wait.pool = verdict.what
            out.wait.available_needed = verdict.available_needed
            out.wait.room_number = verdict.room_number
        case directory_ev.NeverFits():
            out.never.stage = verdict.stage
            out.never.pool = verdict.pool
            out.never.needed = verdict.needed
            out.never.capacity = verdict.capacity
        case directory_ev.Void():
            out.void.reason = verdict.reason
            if verdict.stage is not None:
                out.void.stage = verdict.stage
    return out


def _decode_verdict(message: directory_pb2.Decision) -> directory_ev.Verdict:
    match message.WhichOneof("decision"):
        case "granted":
            return directory_ev.Granted(message.granted.endpoint_tokens, decode_reuse(message.granted.reuse))
        case "wait":
            wait = message.wait
            stage = StageIndex(wait.stage) if wait.HasField("stage") else None
            what = decode_word(directory_ev.WaitFor, wait.pool)
            return directory_ev.Wait(stage, what, wait.available_needed, wait.room_number)
        case "never":
            never = message.never
            return directory_ev.NeverFits(StageIndex(never.stage), never.pool, never.needed, never.capacity)
        case "void":
            void = message.void
            stage = StageIndex(void.stage) if void.HasField("stage") else None
            return directory_ev.Void(decode_reason(directory_ev.VoidReason, void.reason), stage)
    raise PeerProtocolError(f"grant {message.grant}: a decision without content")
