"""What drives the dispatcher: clients in, messages out, and how long nothing has moved."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from wavepp.core.directory.events import Granted
from wavepp.core.directory.reuse_endpoint import ReuseExplanation
from wavepp.core.ids import GrantId, PipelineEpoch, RequestId
from wavepp.core.keys import Namespace, prefix_keys, root_key
from wavepp.core.router import events as router_ev
from wavepp.core.router.dispatcher import Dispatcher, DispatchLimits, DuplicateRequestError
from wavepp.core.router.requests import FailureKind, NewRequest
from wavepp.core.tokens import encode_tokens
from wavepp.core.waves.planner import WavePlanner
from wavepp.core.waves.policies import StaticPolicy
from wavepp.core.waves.types import PlannerConfig
from wavepp.router import dispatch_driver
from wavepp.router.dispatch_driver import DispatchDriver, Sinks
from wavepp.router.errors import StoppedError
from wavepp.router.timeline import Timeline
from wavepp.v1 import types_pb2

B = 4
NAMESPACE = Namespace("model", "f32", B, None, None)


class Driven:
    """An driver whose pipeline and directory are ready; keeps what it sends."""

    def __init__(self) -> None:
        planner = WavePlanner(PlannerConfig(2, 16, 8, B, B), StaticPolicy(16))
        limits = DispatchLimits(99, 9999, 5, 99, 9)
        self.to_directory: list[Any] = []
        self.to_stage0: list[Any] = []
        self.driver = DispatchDriver(
            Dispatcher(limits=limits, planner=planner, block_tokens=B),
            Sinks(self.to_directory.append, self.to_stage0.append, lambda: None),
            Timeline(10),
        )
        self.driver.apply(router_ev.DirectoryChanged(ready=True))
        self.driver.apply(router_ev.PipelineReady(PipelineEpoch(1)))

    def request(self, name: str) -> NewRequest:
        tokens = encode_tokens(range(8))
        keys = prefix_keys(NAMESPACE, tokens)
        context = types_pb2.GrantContext(request_id=name)
        return NewRequest(RequestId(name), tokens, root_key(NAMESPACE), keys, 1, frozenset(), 0, context)

    def grant(self) -> None:
        """Grant what was asked for last."""
        admit = self.to_directory[-1].admit
        reuse = ReuseExplanation(8, 0, 0, 0, 0, None)
        decisions = tuple((GrantId(a.grant), Granted(0, reuse)) for a in admit.attempts)
        self.driver.apply(router_ev.Decided(admit.batch, decisions, True))


async def test_a_client_that_goes_late_does_not_stop_the_next_request_of_the_same_id() -> None:
    driven = Driven()
    first = driven.driver.submit(driven.request("a"), traced=False)
    driven.driver.stop(first, FailureKind.CANCELLED, "gone")
    second = driven.driver.submit(driven.request("a"), traced=False)
    driven.driver.stop(first, FailureKind.CANCELLED, "gone again")
    assert second.error is None
    driven.driver.stop(second, FailureKind.CANCELLED, "gone")
    async with asyncio.timeout(5):
        with pytest.raises(StoppedError):
            await second.result()


async def test_waves_that_follow_a_long_wait_have_their_time() -> None:
    driven = Driven()
    driven.driver.submit(driven.request("a"), traced=False)
    driven.driver.apply(router_ev.PipelineBroken("a stage is loading its model"))
    driven.driver.last_progress -= 500.0
    assert driven.driver.stalled_s >= 500.0
    driven.driver.apply(router_ev.PipelineReady(PipelineEpoch(2)))
    driven.grant()
    assert driven.to_stage0, "a wave is in flight"
    assert driven.driver.stalled_s < 250.0


async def test_who_sends_a_cancelled_request_again_waits_until_its_id_is_free() -> None:
    driven = Driven()
    call = driven.driver.submit(driven.request("again"), traced=False)
    waiting = asyncio.ensure_future(driven.driver.until_free(RequestId("again")))
    await asyncio.sleep(0)
    assert not waiting.done()
    driven.driver.stop(call, FailureKind.CANCELLED, "the client is gone")
    async with asyncio.timeout(10.0):
        await waiting
    driven.driver.submit(driven.request("again"), traced=False)


async def test_an_id_that_stays_in_use_is_refused_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch_driver, "ID_WAIT_S", 0.01)
    driven = Driven()
    await driven.driver.until_free(RequestId("free"))
    driven.driver.submit(driven.request("used"), traced=False)
    async with asyncio.timeout(10.0):
        await driven.driver.until_free(RequestId("used"))
    with pytest.raises(DuplicateRequestError):
        driven.driver.submit(driven.request("used"), traced=False)
