"""One request as the router sees it, from arrival to its last token: a table of (state, event) -> state.

docs/protocol.md draws it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from wavepp.core.directory.events import WaitFor
from wavepp.core.directory.reuse_endpoint import ReuseExplanation
from wavepp.core.errors import TransitionError
from wavepp.core.ids import GrantId, PrefixKey, RequestId, StageIndex
from wavepp.core.keys import extend_keys, key_at
from wavepp.core.limits import KEY_BYTES, TOKEN_BYTES
from wavepp.core.tokens import encode_tokens
from wavepp.core.waves.types import ChosenToken, Chunk

SUSPICION_MAX: Final = 2
"""So often a request may have been with a stage that died before it runs alone: a bystander is unlucky once."""

PAST_TOKENS: Final = 2
"""So many tokens further a request is past what a stage died of: one by prefill, one by a decode step."""


class RequestState(Enum):
    """Where a request is."""

    QUEUED = "queued"
    ADMITTING = "admitting"
    RUNNING = "running"
    DONE = "done"


class RequestEvent(Enum):
    """What can happen to a request."""

    ASK = "ask"
    REFUSED = "refused"
    GRANTED = "granted"
    BROKEN = "broken"
    FINISHED = "finished"
    STOPPED = "stopped"


TRANSITIONS: Final[dict[tuple[RequestState, RequestEvent], RequestState]] = {
    (RequestState.QUEUED, RequestEvent.ASK): RequestState.ADMITTING,
    (RequestState.QUEUED, RequestEvent.STOPPED): RequestState.DONE,
    (RequestState.ADMITTING, RequestEvent.REFUSED): RequestState.QUEUED,
    (RequestState.ADMITTING, RequestEvent.GRANTED): RequestState.RUNNING,
    (RequestState.ADMITTING, RequestEvent.BROKEN): RequestState.QUEUED,
    (RequestState.ADMITTING, RequestEvent.STOPPED): RequestState.DONE,
    (RequestState.RUNNING, RequestEvent.BROKEN): RequestState.QUEUED,
    (RequestState.RUNNING, RequestEvent.FINISHED): RequestState.DONE,
    (RequestState.RUNNING, RequestEvent.STOPPED): RequestState.DONE,
}


class FinishReason(StrEnum):
    """Why a request has all its tokens: an end token, or its budget. The values are those of the wire."""

    STOP = "stop"
    LENGTH = "length"


class FailureKind(Enum):
    """Why a request ended without its tokens."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    NEVER_FITS = "never fits"
    PIPELINE = "pipeline"
    INTERNAL = "internal"
    SHUTDOWN = "shutdown"
    MOVED = "moved"
    """Another router takes it on."""


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request that passed the door's checks.

    `prompt`: token bytes. `keys`: packed keys of its full blocks; `root_key`: what the chain begins with.
    `output_tokens_max`: the output budget, at least 1. `context` goes to the stages as it is. `generated`: tokens that
    an earlier call has given; the answer goes on after them.
    """

    request: RequestId
    prompt: bytes
    root_key: PrefixKey
    keys: bytes
    output_tokens_max: int
    end_tokens: frozenset[int]
    priority: int
    context: object
    generated: tuple[ChosenToken, ...] = ()


@dataclass(slots=True)
class Times:
    """Milliseconds on the router's monotonic clock; 0 until it happened."""

    arrived: float
    asked: float = 0.0
    granted: float = 0.0
    first_token: float = 0.0
    done: float = 0.0


@dataclass(slots=True)
class RequestRecord:
    """A request in the router. `tokens` is the prompt followed by what was generated."""

    new: NewRequest
    order: int
    times: Times
    state: RequestState = RequestState.QUEUED
    tokens: bytearray = field(default_factory=bytearray)
    keys: bytearray = field(default_factory=bytearray)
    outputs: list[ChosenToken] = field(default_factory=list)
    grant: GrantId | None = None
    endpoint_tokens: int = 0
    reuse: ReuseExplanation | None = None
    prefill_tokens: int = 0
    """Length of what this attempt prefills: the prompt, and what earlier attempts generated."""
    computed_tokens: int = 0
    waves: int = 0
    attempts: int = 0
    breaks: int = 0
    """How often the pipeline broke while it ran, since its last token."""
    charges: int = 0
    """How often a stage died while this may have been what it ran."""
    suspicion: int = 0
    """The same, since it was last past such a place."""
    charged_outputs: int = 0
    """Tokens that it had at the last charge."""
    unanswered: int = 0
    """How often a stage that was asked for it did not answer, since one did."""
    unanswered_alone: int = 0
    """The same, where nothing else was asked for with it."""
    asked_alone: bool = False
    waits: int = 0
    waited_for: tuple[StageIndex | None, WaitFor | None] = (None, None)

    @property
    def suspect(self) -> bool:
        """Whether it may only run alone."""
        return self.suspicion >= SUSPICION_MAX

    @property
    def request(self) -> RequestId:
        """The request's id."""
        return self.new.request

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller goes first: higher priority, then earlier arrival."""
        return (-self.new.priority, self.order)

    @property
    def prompt_tokens(self) -> int:
        """Length of the client's prompt."""
        return len(self.new.prompt) // TOKEN_BYTES

    @property
    def total_tokens(self) -> int:
        """Most tokens that ever have a cache entry: the last output is never fed back."""
        return self.prompt_tokens + self.new.output_tokens_max - 1

    @property
    def length(self) -> int:
        """Tokens known so far."""
        return len(self.tokens) // TOKEN_BYTES

    def apply(self, event: RequestEvent) -> None:
        """Change state; raises TransitionError for an impossible pair."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise TransitionError(f"request {self.request}", self.state.value, event.value)
        self.state = following

    def begin_attempt(self, grant: GrantId, now_ms: float, *, alone: bool) -> None:
        """The request is asked for under a new grant id, alone or with others."""
        self.apply(RequestEvent.ASK)
        self.grant = grant
        self.asked_alone = alone
        self.times.asked = self.times.asked or now_ms
        self.prefill_tokens = self.length

    def charge(self) -> None:
        """A stage died, and this may have been what it died of."""
        self.charges += 1
        self.suspicion += 1
        self.charged_outputs = len(self.outputs)

    def not_answered(self) -> None:
        """A stage that was asked for it did not answer."""
        self.unanswered += 1
        self.unanswered_alone += self.asked_alone

    def answered(self) -> None:
        """All stages did."""
        self.unanswered = self.unanswered_alone = 0

    def add_output(self, chosen: ChosenToken) -> None:
        """Append a generated token."""
        self.breaks = 0
        self.outputs.append(chosen)
        if len(self.outputs) >= self.charged_outputs + PAST_TOKENS:
            self.suspicion = 0
        self.tokens += encode_tokens((chosen.token,))

    def finish_reason(self) -> FinishReason | None:
        """Why there are no more tokens; None while the request goes on."""
        if self.outputs and self.outputs[-1].token in self.new.end_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.outputs) >= self.new.output_tokens_max else None

    def outcome(self, reason: FinishReason) -> RequestOutcome:
        """What the client gets, now that all tokens are there."""
        return RequestOutcome(
            request=self.request,
            tokens=tuple(self.outputs),
            finish_reason=reason,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=min(self.endpoint_tokens, self.prompt_tokens),
            computed_tokens=self.computed_tokens,
            reuse=self.reuse or ReuseExplanation(self.prompt_tokens, 0, 0, 0, 0, None),
            waits=self.waits,
            waited_for=self.waited_for,
            waves=self.waves,
            attempts=self.attempts,
            times=self.times,
        )

    def issue(self, chunk: Chunk, block_tokens: int) -> tuple[bytes, bytes]:
        """A chunk of it goes into a wave: the chunk's token bytes, and the key of the block that a decode step fills,
        which admission could not know (else empty)."""
        self.waves += 1
        end = chunk.start + chunk.length
        self.computed_tokens += max(0, min(end, self.prompt_tokens) - chunk.start)
        tokens = bytes(memoryview(self.tokens)[chunk.start * TOKEN_BYTES : end * TOKEN_BYTES])
        if not chunk.decode or end % block_tokens:
            return tokens, b""
        self.extend_keys(block_tokens)
        block = end // block_tokens - 1
        return tokens, bytes(self.keys[block * KEY_BYTES : (block + 1) * KEY_BYTES])

    def extend_keys(self, block_tokens: int) -> None:
        """Bring `keys` up to the full blocks of `tokens`."""
        have = len(self.keys) // KEY_BYTES
        if self.length // block_tokens > have:
            previous = key_at(bytes(self.keys[-KEY_BYTES:]), 0) if have else self.new.root_key
            unhashed = bytes(self.tokens[have * block_tokens * TOKEN_BYTES :])
            self.keys += extend_keys(previous, block_tokens, unhashed)


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """A finished request."""

    request: RequestId
    tokens: tuple[ChosenToken, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    reuse: ReuseExplanation
    waits: int
    waited_for: tuple[StageIndex | None, WaitFor | None]
    waves: int
    attempts: int
    times: Times


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that ended without all of its tokens."""

    request: RequestId
    kind: FailureKind
    message: str
