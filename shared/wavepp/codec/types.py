"""What several messages carry: steps, room, and why reuse ended where it did."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from wavepp.core.cache.types import Room
from wavepp.core.directory.events import VoidReason
from wavepp.core.directory.reuse_endpoint import ReuseExplanation
from wavepp.core.errors import PeerProtocolError
from wavepp.core.ids import GrantId, StageIndex
from wavepp.core.stage.events import RefusalReason
from wavepp.core.waves.types import StepTime
from wavepp.v1 import types_pb2

Word = TypeVar("Word", bound=StrEnum)
Reason = TypeVar("Reason", RefusalReason, VoidReason)


def decode_word(kind: type[Word], text: str) -> Word:
    """The member of that value; the other way they go as they are. Raises PeerProtocolError for an unknown one."""
    try:
        return kind(text)
    except ValueError as error:
        raise PeerProtocolError(f"{error}; run the same release everywhere") from error


def decode_reason(kind: type[Reason], text: str) -> Reason:
    """The member of that value; OTHER for an unknown one: whatever it is, only this attempt is over."""
    return kind(text) if text in list(kind) else kind("other")


def decode_grants(grants: Iterable[int]) -> tuple[GrantId, ...]:
    """Ids of a repeated field; the other way they go as they are."""
    return tuple(GrantId(g) for g in grants)


def encode_step(step: StepTime) -> types_pb2.StepTime:
    """One stage's step of a wave."""
    return types_pb2.StepTime(
        stage=step.stage,
        start_unix_ns=step.start_ns,
        duration_ns=step.duration_ns,
        queued_ns=step.queued_ns,
        tokens=step.tokens,
    )


def decode_step(message: types_pb2.StepTime) -> StepTime:
    """See `encode_step`."""
    return StepTime(
        StageIndex(message.stage), message.start_unix_ns, message.duration_ns, message.queued_ns, message.tokens
    )


def encode_room(room: Room) -> types_pb2.Room:
    """A stage's room."""
    return types_pb2.Room(number=room.number, available=room.available)


def decode_room(message: types_pb2.Room) -> Room:
    """See `encode_room`."""
    return Room(message.number, dict(message.available))


def encode_reuse(reuse: ReuseExplanation) -> types_pb2.ReuseExplanation:
    """How much was reused; how often it was waited for is said by the router, to the client alone."""
    return types_pb2.ReuseExplanation(
        prompt_tokens=reuse.prompt_tokens,
        longest_any_tokens=reuse.longest_any_tokens,
        longest_all_tokens=reuse.longest_all_tokens,
        after_snapshots_tokens=reuse.after_snapshots_tokens,
        endpoint_tokens=reuse.endpoint_tokens,
        limiting_stage=reuse.limiting_stage,
    )


def decode_reuse(message: types_pb2.ReuseExplanation) -> ReuseExplanation:
    """See `encode_reuse`."""
    return ReuseExplanation(
        message.prompt_tokens,
        message.longest_any_tokens,
        message.longest_all_tokens,
        message.after_snapshots_tokens,
        message.endpoint_tokens,
        StageIndex(message.limiting_stage) if message.HasField("limiting_stage") else None,
    )
