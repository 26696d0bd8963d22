"""The life of one grant on one stage: a table of (state, event) -> (state, action), and the record itself.

docs/protocol.md draws the table. Three rules keep an old message from harming a later one:
- A grant that has been in a wave (RUNNING) ends only in wave order or by an epoch. An abort from the directory is
  ignored then: a wave that names the grant may be queued right here.
- The first chunk commits, as soon as its wave is here. There is no commit message that a wave could overtake.
- ENDED leaves a tombstone: an id is never used twice, so whatever comes late for it is recognised and refused.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from wavepp.core.errors import STORY_EVENTS_MAX, TransitionError
from wavepp.core.ids import GrantId
from wavepp.core.limits import KEY_BYTES

TOMBSTONES_MAX: Final = 65_536
"""More than the grants of all waves in flight, so that a tombstone outlives the wave horizon."""


class GrantState(Enum):
    """Where a grant is in its life on this stage."""

    PREPARED = "prepared"
    RUNNING = "running"
    ENDED = "ended"


class GrantEvent(Enum):
    """What can happen to a grant."""

    CHUNK = "chunk"
    ABORT = "abort"
    END = "end"
    FENCE = "fence"


class GrantAction(Enum):
    """What follows from an event."""

    COMMIT = "commit"
    RUN = "run"
    RELEASE = "release"
    REFUSE = "refuse"
    IGNORE = "ignore"


TRANSITIONS: Final[dict[tuple[GrantState, GrantEvent], tuple[GrantState, GrantAction]]] = {
    (GrantState.PREPARED, GrantEvent.CHUNK): (GrantState.RUNNING, GrantAction.COMMIT),
    (GrantState.PREPARED, GrantEvent.ABORT): (GrantState.ENDED, GrantAction.RELEASE),
    (GrantState.PREPARED, GrantEvent.END): (GrantState.ENDED, GrantAction.RELEASE),
    (GrantState.PREPARED, GrantEvent.FENCE): (GrantState.ENDED, GrantAction.RELEASE),
    (GrantState.RUNNING, GrantEvent.CHUNK): (GrantState.RUNNING, GrantAction.RUN),
    (GrantState.RUNNING, GrantEvent.ABORT): (GrantState.RUNNING, GrantAction.IGNORE),
    (GrantState.RUNNING, GrantEvent.END): (GrantState.ENDED, GrantAction.RELEASE),
    (GrantState.RUNNING, GrantEvent.FENCE): (GrantState.ENDED, GrantAction.RELEASE),
    (GrantState.ENDED, GrantEvent.CHUNK): (GrantState.ENDED, GrantAction.REFUSE),
    (GrantState.ENDED, GrantEvent.ABORT): (GrantState.ENDED, GrantAction.IGNORE),
    (GrantState.ENDED, GrantEvent.END): (GrantState.ENDED, GrantAction.IGNORE),
    (GrantState.ENDED, GrantEvent.FENCE): (GrantState.ENDED, GrantAction.IGNORE),
}


@dataclass(slots=True)
class StageGrant:
    """One grant as this stage knows it. `context` is whatever the shell wants back with the grant's jobs."""

    grant: GrantId
    prompt_tokens: int
    total_tokens: int
    endpoint_tokens: int
    snapshots: tuple[int, ...]
    keys_first_block: int
    keys: bytes
    context: object
    state: GrantState = GrantState.PREPARED
    position: int = 0
    """Next token to hand to the executor."""
    published_tokens: int = 0
    """Up to here the full blocks are published."""
    failure: str = ""
    """Why later chunks are refused; empty while all is well."""
    story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_EVENTS_MAX))

    def apply(self, event: GrantEvent) -> GrantAction:
        """Change state; raises TransitionError for an impossible pair."""
        rule = TRANSITIONS.get((self.state, event))
        if rule is None:
            raise TransitionError(f"grant {self.grant}", self.state.value, event.value, tuple(self.story))
        self.story.append(f"{self.state.value}:{event.value}")
        self.state, action = rule
        return action

    def move_endpoint(self, endpoint_tokens: int, snapshots: tuple[int, ...]) -> None:
        """Set the reuse endpoint (before the first chunk)."""
        self.endpoint_tokens = self.position = self.published_tokens = endpoint_tokens
        self.snapshots = snapshots

    def keys_between(self, first_block: int, last_block: int, later: bytes) -> bytes:
        """Packed keys of blocks [first_block, last_block): those of the prompt, then `later` ones of decoding.

        `later` holds the keys of the blocks at the end of the range that the prompt's keys do not cover.
        """
        prompt_blocks = self.keys_first_block + len(self.keys) // KEY_BYTES
        upto = min(last_block, prompt_blocks)
        known = self.keys[
            (first_block - self.keys_first_block) * KEY_BYTES : (upto - self.keys_first_block) * KEY_BYTES
        ]
        return known + later


class GrantTable:
    """All grants of one stage, and the tombstones of the ended ones."""

    def __init__(self, tombstones_max: int = TOMBSTONES_MAX) -> None:
        self._live: dict[GrantId, StageGrant] = {}
        self._tombstones: OrderedDict[GrantId, None] = OrderedDict()
        self._tombstones_max = tombstones_max

    def __len__(self) -> int:
        return len(self._live)

    def live(self) -> tuple[StageGrant, ...]:
        """Grants that are prepared or running, in the order in which they were prepared."""
        return tuple(self._live.values())

    def get(self, grant: GrantId) -> StageGrant | None:
        """The live grant, or None."""
        return self._live.get(grant)

    def add(self, record: StageGrant) -> None:
        """Enter a prepared grant; its id must be new here."""
        if record.grant in self._live or record.grant in self._tombstones:
            raise TransitionError(f"grant {record.grant}", "known", "prepare")
        self._live[record.grant] = record

    def ended(self, grant: GrantId) -> bool:
        """Whether `grant` has left a tombstone."""
        return grant in self._tombstones

    def bury(self, grant: GrantId) -> None:
        """Replace an ended grant by its tombstone (or leave one for a grant that never came)."""
        self._live.pop(grant, None)
        self._tombstones[grant] = None
        while len(self._tombstones) > self._tombstones_max:
            self._tombstones.popitem(last=False)
