"""The client API between the door's checks and the driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from wavepp.infra.telemetry import TracingOptions, setup_telemetry
from wavepp.router.config import RouterConfig
from wavepp.router.errors import NotServingError
from wavepp.router.front_door import PrefillServicer
from wavepp.router.leadership import Leadership
from wavepp.router.relay import Relay
from wavepp.router.tracing import Tracing
from wavepp.v1 import prefill_pb2


class Context:
    """Of a call without metadata and deadline."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None:
        return None


class Door:
    """A servicer whose validator takes a while: `meanwhile` happens in it."""

    def __init__(self) -> None:
        self.drivers: list[Any] = [object()]
        leadership = SimpleNamespace(
            require_validator=lambda: (self, self.drivers[-1]), config=RouterConfig(), leading=True
        )
        tracing = Tracing(setup_telemetry("test", TracingOptions()))
        self.servicer = PrefillServicer(cast(Leadership, leadership), cast(Relay, None), tracing)
        self.meanwhile = self.servicer.drain

    async def admit(self, _message: prefill_pb2.PrefillRequest, _traceparent: str) -> None:
        self.meanwhile()


async def test_a_request_that_is_read_when_the_router_begins_to_stop_is_refused() -> None:
    door = Door()
    with pytest.raises(NotServingError, match="stops"):
        await door.servicer.Prefill(prefill_pb2.PrefillRequest(), cast(Any, Context()))


async def test_a_request_that_is_read_when_the_stages_are_replaced_does_not_go_to_the_old_driver() -> None:
    door = Door()
    door.meanwhile = lambda: door.drivers.append(object())
    with pytest.raises(NotServingError, match="replaced"):
        await door.servicer.Prefill(prefill_pb2.PrefillRequest(), cast(Any, Context()))
