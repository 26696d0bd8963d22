"""The rounds stream, between the directory and a stage: leases, escrows, and what the cache holds."""

from __future__ import annotations

from wavepp.codec.types import decode_grants, decode_reason
from wavepp.core.cache.types import (
    PINS,
    POOLS,
    CacheChange,
    CacheChanges,
    ChangeKind,
    DumpSegment,
    Missing,
    NeedKeys,
    Never,
    Prepared,
    Room,
)
from wavepp.core.directory import events as directory_ev
from wavepp.core.errors import PeerProtocolError
from wavepp.core.ids import GrantId, PipelineEpoch, PrefixKey, RoundId, StageIndex
from wavepp.core.limits import KEY_BYTES, ROUND_ATTEMPTS_MAX
from wavepp.core.stage import events as stage_ev
from wavepp.v1 import stage_pb2, types_pb2

# ---- directory -> stage; the stream numbers its commands ----


def encode_prepare(send: directory_ev.SendPrepare) -> stage_pb2.RoundsCommand:
    """A Prepare."""
    grants = [_encode_prepare_grant(g) for g in send.grants]
    message = stage_pb2.Prepare(round=send.round, pipeline_epoch=send.epoch, grants=grants)
    return stage_pb2.RoundsCommand(prepare=message)


def decode_prepare(message: stage_pb2.Prepare) -> stage_ev.PrepareArrived:
    """See `encode_prepare`. Raises PeerProtocolError for what no directory sends."""
    if len(message.grants) > ROUND_ATTEMPTS_MAX:
        raise PeerProtocolError(f"{len(message.grants)} grants in a round, at most {ROUND_ATTEMPTS_MAX}")
    grants = tuple(_decode_prepare_grant(g) for g in message.grants)
    return stage_ev.PrepareArrived(RoundId(message.round), PipelineEpoch(message.pipeline_epoch), grants)


def _encode_prepare_grant(g: stage_ev.PrepareGrant) -> stage_pb2.PrepareGrant:
    return stage_pb2.PrepareGrant(
        grant=g.grant,
        endpoint_tokens=g.endpoint_tokens,
        prompt_tokens=g.prompt_tokens,
        total_tokens=g.total_tokens,
        first_block=g.first_block,
        keys=g.keys,
        key_before=g.key_before,
        context=g.context if isinstance(g.context, types_pb2.GrantContext) else None,
    )


def _decode_prepare_grant(g: stage_pb2.PrepareGrant) -> stage_ev.PrepareGrant:
    if len(g.keys) % KEY_BYTES or len(g.key_before) != (KEY_BYTES if g.first_block else 0):
        raise PeerProtocolError(f"grant {g.grant}: keys of {len(g.keys)} and {len(g.key_before)} bytes")
    if not 0 < g.prompt_tokens <= g.total_tokens or g.endpoint_tokens >= g.prompt_tokens:
        raise PeerProtocolError(
            f"grant {g.grant}: endpoint {g.endpoint_tokens} of {g.prompt_tokens}, {g.total_tokens} in all"
        )
    return stage_ev.PrepareGrant(
        grant=GrantId(g.grant),
        endpoint_tokens=g.endpoint_tokens,
        prompt_tokens=g.prompt_tokens,
        total_tokens=g.total_tokens,
        first_block=g.first_block,
        keys=g.keys,
        key_before=g.key_before,
        context=g.context,
    )


def encode_lower(send: directory_ev.SendLower) -> stage_pb2.RoundsCommand:
    """A Lower."""
    grants = [stage_pb2.LowerGrant(grant=g, endpoint_tokens=e) for g, e in send.grants]
    return stage_pb2.RoundsCommand(lower=stage_pb2.Lower(round=send.round, grants=grants))


def decode_lower(message: stage_pb2.Lower) -> stage_ev.LowerArrived:
    """See `encode_lower`."""
    return stage_ev.LowerArrived(
        RoundId(message.round), tuple((GrantId(g.grant), g.endpoint_tokens) for g in message.grants)
    )


def encode_abort(send: directory_ev.SendAbort) -> stage_pb2.RoundsCommand:
    """An Abort."""
    return stage_pb2.RoundsCommand(abort=stage_pb2.Abort(grants=send.grants))


def decode_abort(message: stage_pb2.Abort) -> stage_ev.AbortArrived:
    """See `encode_abort`."""
    return stage_ev.AbortArrived(decode_grants(message.grants))


# ---- stage -> directory: answers ----


def encode_answers(answer: stage_ev.AnswerPrepare | stage_ev.AnswerLower, room: Room) -> stage_pb2.RoundsEvent:
    """Answers to a Prepare or a Lower. Refusals carry the number of the room that they were computed from."""
    grants = [_encode_answer(grant, one, room.number) for grant, one in answer.answers]
    message = stage_pb2.PrepareAnswer(round=answer.round, grants=grants)
    if isinstance(answer, stage_ev.AnswerLower):
        return stage_pb2.RoundsEvent(lowered=message)
    return stage_pb2.RoundsEvent(prepared=message)


def decode_answers(stage: StageIndex, message: stage_pb2.PrepareAnswer, *, lowered: bool) -> directory_ev.StageAnswered:
    """See `encode_answers`. Raises PeerProtocolError for an answer without content, or an unknown one."""
    answers = tuple((GrantId(g.grant), *_decode_answer(g)) for g in message.grants)
    return directory_ev.StageAnswered(stage, RoundId(message.round), answers, lowered)


def _encode_answer(grant: GrantId, answer: stage_ev.Answer, room_number: int) -> stage_pb2.GrantAnswer:
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
        case stage_ev.Refused():
            out.refused.reason = answer.reason
    return out


def _decode_answer(g: stage_pb2.GrantAnswer) -> tuple[stage_ev.Answer, int]:
    match g.WhichOneof("answer"):
        case "prepared":
            return Prepared(g.prepared.endpoint_tokens, tuple(g.prepared.snapshots)), 0
        case "need_keys":
            return NeedKeys(), 0
        case "missing":
            m = g.missing
            if m.pool not in (*POOLS, PINS):
                raise PeerProtocolError(f"grant {g.grant}: pool {m.pool!r} is unknown; run the same release everywhere")
            return Missing(m.pool, m.available_needed, m.available), m.room_number
        case "never":
            return Never(g.never.pool, g.never.needed, g.never.capacity), 0
        case "refused":
            return stage_ev.Refused(decode_reason(stage_ev.RefusalReason, g.refused.reason)), 0
    raise PeerProtocolError(f"grant {g.grant}: an answer without content")


# ---- stage -> directory: what the cache holds ----


def encode_changes(incarnation: str, changes: CacheChanges) -> stage_pb2.RoundsEvent:
    """Changes of the cache, in order."""
    message = stage_pb2.CacheChanges(
        incarnation=incarnation,
        first=changes.first_number,
        gap=changes.gap,
        changes=[
            stage_pb2.CacheChange(kind=stage_pb2.CacheChange.Kind.ValueType(c.kind), key=c.key) for c in changes.changes
        ],
    )
    return stage_pb2.RoundsEvent(changes=message)


def decode_changes(stage: StageIndex, message: stage_pb2.CacheChanges) -> directory_ev.CacheChanged:
    """See `encode_changes`. Raises PeerProtocolError for a kind of change that is unknown here."""
    try:
        changes = tuple(CacheChange(ChangeKind(c.kind), PrefixKey(c.key)) for c in message.changes)
    except ValueError as error:
        raise PeerProtocolError(f"stage {stage}: {error}; run the same release everywhere") from error
    return directory_ev.CacheChanged(stage, message.incarnation, message.first, changes, message.gap)


def encode_dump(incarnation: str, segment: DumpSegment) -> stage_pb2.RoundsEvent:
    """A part of all that the cache holds."""
    message = stage_pb2.CacheDump(
        incarnation=incarnation,
        keys=segment.keys,
        snapshot_keys=segment.snapshot_keys,
        last=segment.last,
        next_change=segment.cursor,
    )
    return stage_pb2.RoundsEvent(dump=message)


def decode_dump(stage: StageIndex, message: stage_pb2.CacheDump) -> directory_ev.CacheDumped:
    """See `encode_dump`. Raises PeerProtocolError when the keys are cut."""
    if len(message.keys) % KEY_BYTES or len(message.snapshot_keys) % KEY_BYTES:
        raise PeerProtocolError(f"stage {stage}: a dump of {len(message.keys)} bytes of keys")
    return directory_ev.CacheDumped(
        stage, message.incarnation, message.keys, message.snapshot_keys, message.last, message.next_change
    )
