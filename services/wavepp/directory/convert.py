"""Between the wire's messages and the core's."""

from __future__ import annotations

from collections.abc import Iterable

from wavepp.core.cache.changes import CacheChange, ChangeKind
from wavepp.core.cache.types import Missing, NeedKeys, Never, Prepared
from wavepp.core.directory import events as am
from wavepp.core.directory.endpoint import ReuseExplanation
from wavepp.core.errors import PeerProtocolError
from wavepp.core.ids import GrantId, PipelineEpoch, PrefixKey, RoundId, StageIndex
from wavepp.core.limits import KEY_BYTES, ROUND_ATTEMPTS_MAX
from wavepp.core.stage.events import Answer, PrepareGrant, Refused
from wavepp.v1 import directory_pb2, stage_pb2, types_pb2


def admit(message: directory_pb2.Admit, block_tokens: int) -> am.Admit:
    """Raises PeerProtocolError for what no router sends."""
    if len(message.attempts) > ROUND_ATTEMPTS_MAX:
        raise PeerProtocolError(f"{len(message.attempts)} attempts in a batch, at most {ROUND_ATTEMPTS_MAX}")
    attempts = []
    for a in message.attempts:
        if len(a.keys) != a.prompt_tokens // block_tokens * KEY_BYTES or not 0 < a.prompt_tokens <= a.total_tokens:
            raise PeerProtocolError(
                f"grant {a.grant}: {len(a.keys)} bytes of keys for {a.prompt_tokens} of {a.total_tokens} tokens"
            )
        attempts.append(am.Attempt(GrantId(a.grant), a.prompt_tokens, a.total_tokens, a.keys, a.context))
    return am.Admit(message.batch, PipelineEpoch(message.pipeline_epoch), tuple(attempts))


def grant_ids(grants: Iterable[int]) -> tuple[GrantId, ...]:
    """Ids of a repeated field."""
    return tuple(GrantId(g) for g in grants)


def decisions(decide: am.Decide) -> directory_pb2.AdmissionEvent:
    """What the router hears of a batch."""
    told = [_decision(grant, verdict) for grant, verdict in decide.decisions]
    return directory_pb2.AdmissionEvent(
        decisions=directory_pb2.Decisions(batch=decide.batch, decisions=told, answered=decide.answered)
    )


def _decision(grant: GrantId, verdict: am.Verdict) -> directory_pb2.Decision:
    out = directory_pb2.Decision(grant=grant)
    match verdict:
        case am.Granted():
            out.granted.endpoint_tokens = verdict.endpoint_tokens
            out.granted.reuse.CopyFrom(explanation(verdict.reuse))
        case am.Wait():
            if verdict.stage is not None:
                out.wait.stage = verdict.stage
            out.wait.pool = verdict.pool
            out.wait.available_needed = verdict.available_needed
            out.wait.room_number = verdict.room_number
        case am.NeverFits():
            out.never.stage = verdict.stage
            out.never.pool = verdict.pool
            out.never.needed = verdict.needed
            out.never.capacity = verdict.capacity
        case am.Void():
            out.void.reason = verdict.reason
    return out


def explanation(reuse: ReuseExplanation) -> types_pb2.ReuseExplanation:
    """What was reused, for the wire."""
    out = types_pb2.ReuseExplanation(
        prompt_tokens=reuse.prompt_tokens,
        longest_any_tokens=reuse.longest_any_tokens,
        longest_all_tokens=reuse.longest_all_tokens,
        after_snapshots_tokens=reuse.after_snapshots_tokens,
        endpoint_tokens=reuse.endpoint_tokens,
    )
    if reuse.limiting_stage is not None:
        out.limiting_stage = reuse.limiting_stage
    return out


def prepare(send: am.SendPrepare) -> stage_pb2.RoundsCommand:
    """A Prepare; the stream numbers it."""
    grants = [_prepare_grant(g) for g in send.grants]
    message = stage_pb2.Prepare(round=send.round, pipeline_epoch=send.epoch, grants=grants)
    return stage_pb2.RoundsCommand(prepare=message)


def _prepare_grant(g: PrepareGrant) -> stage_pb2.PrepareGrant:
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


def lower(send: am.SendLower) -> stage_pb2.RoundsCommand:
    """A Lower; the stream numbers it."""
    grants = [stage_pb2.LowerGrant(grant=g, endpoint_tokens=e) for g, e in send.grants]
    return stage_pb2.RoundsCommand(lower=stage_pb2.Lower(round=send.round, grants=grants))


def answered(stage: StageIndex, message: stage_pb2.PrepareAnswer, *, lowered: bool) -> am.StageAnswered:
    """Raises PeerProtocolError for an answer without content."""
    answers = []
    for g in message.grants:
        answer, room_number = _answer(g)
        answers.append((GrantId(g.grant), answer, room_number))
    return am.StageAnswered(stage, RoundId(message.round), tuple(answers), lowered)


def _answer(g: stage_pb2.GrantAnswer) -> tuple[Answer, int]:
    match g.WhichOneof("answer"):
        case "prepared":
            return Prepared(g.prepared.endpoint_tokens, tuple(g.prepared.snapshots)), 0
        case "need_keys":
            return NeedKeys(), 0
        case "missing":
            m = g.missing
            return Missing(m.pool, m.available_needed, m.available), m.room_number
        case "never":
            return Never(g.never.pool, g.never.needed, g.never.capacity), 0
        case "refused":
            return Refused(g.refused.reason), 0
    raise PeerProtocolError(f"grant {g.grant}: an answer without content")


def cache_changed(stage: StageIndex, message: stage_pb2.CacheChanges) -> am.CacheChanged:
    """Changes of a stage's cache."""
    changes = tuple(CacheChange(ChangeKind(c.kind), PrefixKey(c.key)) for c in message.changes)
    return am.CacheChanged(stage, message.incarnation, message.first, changes, message.gap)


def cache_dumped(stage: StageIndex, message: stage_pb2.CacheDump) -> am.CacheDumped:
    """A piece of a dump. Raises PeerProtocolError when the keys are cut."""
    if len(message.keys) % KEY_BYTES or len(message.snapshot_keys) % KEY_BYTES:
        raise PeerProtocolError(f"stage {stage}: a dump of {len(message.keys)} bytes of keys")
    return am.CacheDumped(
        stage, message.incarnation, message.keys, message.snapshot_keys, message.last, message.next_change
    )
