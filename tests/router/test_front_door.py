"""The client API between the door's checks and the driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wavepp.core.errors import InvalidInputError
from wavepp.infra.leader import Leader
from wavepp.infra.telemetry import TracingOptions, setup_telemetry
from wavepp.router import front_door
from wavepp.router.config import RouterConfig
from wavepp.router.errors import MovedError, NotServingError
from wavepp.router.front_door import PrefillServicer
from wavepp.router.leadership import Leadership
from wavepp.router.relay import Relay
from wavepp.router.tracing import Tracing
from wavepp.v1 import prefill_pb2


class Context:
    """Of a call without metadata and deadline; keeps what is written."""

    def __init__(self) -> None:
        self.events: list[prefill_pb2.PrefillEvent] = []

    async def write(self, event: prefill_pb2.PrefillEvent) -> None:
        self.events.append(event)

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None:
        return None


class Driver:
    """Knows of no request."""

    async def until_free(self, _request: str) -> None:
        """At once."""


class Door:
    """A servicer whose validator takes a while: `meanwhile` happens in it."""

    def __init__(self) -> None:
        self.drivers: list[Any] = [Driver()]
        leadership = SimpleNamespace(
            require_validator=lambda: (self, self.drivers[-1]), config=RouterConfig(), leading=True
        )
        tracing = Tracing(setup_telemetry("test", TracingOptions()))
        self.servicer = PrefillServicer(cast(Leadership, leadership), cast(Relay, None), tracing)
        self.meanwhile = self.servicer.drain

    async def admit(self, message: prefill_pb2.PrefillRequest, _traceparent: str) -> Any:
        self.meanwhile()
        return SimpleNamespace(request=message.request_id)


async def test_a_request_that_is_read_when_the_router_begins_to_stop_is_refused() -> None:
    door = Door()
    with pytest.raises(NotServingError, match="stops"):
        await door.servicer.Prefill(prefill_pb2.PrefillRequest(), cast(Any, Context()))


async def test_a_request_that_is_read_when_the_stages_are_replaced_does_not_go_to_the_old_driver() -> None:
    door = Door()
    door.meanwhile = lambda: door.drivers.append(Driver())
    with pytest.raises(NotServingError, match="replaced"):
        await door.servicer.Prefill(prefill_pb2.PrefillRequest(), cast(Any, Context()))


def tokens(*ids: int) -> list[prefill_pb2.PrefillToken]:
    return [prefill_pb2.PrefillToken(index=index, token_id=token) for index, token in enumerate(ids)]


@pytest.mark.parametrize(
    ("given", "kept"), [((), 0), ((5,), 1), ((5, 6, 7), 2), ((5, 9), 1)], ids=["none", "some", "all", "an end token"]
)
def test_a_request_that_moves_leaves_something_to_compute(given: tuple[int, ...], kept: int) -> None:
    request = prefill_pb2.PrefillRequest(text="a", max_tokens=3)
    resumed = front_door._resumed(request, tokens(*given), frozenset({9}))
    assert list(resumed.generated) == tokens(*given)[:kept]
    assert resumed.text == "a"


class Moving:
    """A relay to a leader that gives all tokens and dies before it ends the answer; the next one gives the rest."""

    def __init__(self) -> None:
        self.asked: list[prefill_pb2.PrefillRequest] = []

    async def events(
        self, _leader: Leader, request: prefill_pb2.PrefillRequest, *_rest: object
    ) -> AsyncIterator[prefill_pb2.PrefillEvent]:
        self.asked.append(request)
        assert len(request.generated) < request.max_tokens
        for token in tokens(5, 6)[len(request.generated) :]:
            yield prefill_pb2.PrefillEvent(token=token)
        if len(self.asked) == 1:
            raise MovedError("it died")
        yield prefill_pb2.PrefillEvent(done=prefill_pb2.PrefillResponse(token_ids=[5, 6]))


def standing_by(relay: object) -> PrefillServicer:
    """The door of a router that always knows the same leader."""
    leadership = SimpleNamespace(
        leading=False,
        leader=Leader(address="127.0.0.1:1", instance="a"),
        config=RouterConfig(),
        validator=None,
        turned=asyncio.Event().wait,
    )
    tracing = Tracing(setup_telemetry("test", TracingOptions()))
    return PrefillServicer(cast(Leadership, leadership), cast(Relay, relay), tracing)


async def test_an_answer_whose_leader_died_before_its_last_word_is_ended_by_the_next() -> None:
    relay = Moving()
    request = prefill_pb2.PrefillRequest(text="a", max_tokens=2)
    context = Context()
    await standing_by(relay).PrefillStream(request, cast(Any, context))
    events = context.events
    assert [event.token.token_id for event in events[:-1]] == [5, 6], "each once"
    assert list(events[-1].done.token_ids) == [5, 6]
    assert len(relay.asked) == 2


async def test_a_request_that_had_been_taken_waits_anew_for_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it had waited there: it may have had no token yet."""
    monkeypatch.setattr(front_door, "TAKEN_S", -1.0)
    servicer = standing_by(Moving())
    monkeypatch.setattr(PrefillServicer, "_leader_wait_s", property(lambda _self: next(waits)))
    waits = iter([0.0, 10.0])
    request = prefill_pb2.PrefillRequest(text="a", max_tokens=2)
    assert (await servicer.Prefill(request, cast(Any, Context()))).token_ids == [5, 6]


async def test_a_leader_that_takes_nothing_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_door, "LEADER_WAIT_LEASES", 0)
    request = prefill_pb2.PrefillRequest(text="a", max_tokens=2)
    with pytest.raises(MovedError, match="it died"):
        await standing_by(Moving()).Prefill(request, cast(Any, Context()))


async def test_more_tokens_than_any_request_may_have_are_refused_before_they_are_read() -> None:
    request = prefill_pb2.PrefillRequest(text="a", generated=tokens(*range(RouterConfig().output_tokens_max + 1)))
    with pytest.raises(InvalidInputError, match="generated already"):
        await standing_by(Moving()).Prefill(request, cast(Any, Context()))
