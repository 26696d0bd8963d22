"""Errors that the core raises. Each says what was wrong, what the limit is, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STORY_EVENTS_MAX: Final = 8
"""The last events that each object with a table of states keeps, to say what led to an impossible one."""


class WaveppError(Exception):
    """Base of all errors of this project. They pass from process to process, whatever their constructors take."""

    def __reduce__(self) -> tuple[Callable[..., WaveppError], tuple[object, ...]]:
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[WaveppError], args: tuple[object, ...], state: dict[str, object]) -> WaveppError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InvalidInputError(WaveppError):
    """What a caller gave is outside the contract. The message names the limit."""


class InvariantError(WaveppError):
    """A rule that must always hold does not: a fault in this program, never in its input."""


class DoubleReleaseError(InvariantError):
    """A receipt was used twice, or never came from here."""


class TransitionError(InvariantError):
    """An event that is impossible in the present state; carries the object's story (its last events)."""

    def __init__(self, what: str, state: str, event: str, story: tuple[str, ...] = ()) -> None:
        events = " <- ".join(reversed(story)) if story else "(none)"
        super().__init__(f"{what}: event {event!r} is impossible in state {state!r}; last events: {events}")
        self.what = what
        self.state = state
        self.event = event
        self.story = story


class PeerProtocolError(WaveppError):
    """The other side broke the protocol. The link or stream to it is torn down; we did nothing wrong."""


class SupersededError(PeerProtocolError):
    """The other side leads no more: somebody with a higher token has been here."""
