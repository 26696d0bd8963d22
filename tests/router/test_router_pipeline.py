"""The router's hold on its pipeline, against an etcd that says no."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from wavepp.core.ids import Incarnation, StageIndex
from wavepp.core.router import epochs as ep
from wavepp.core.waves.step_bound import StepBound
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.errors import EtcdError, EtcdReadOnlyError, EtcdUnavailableError, FencedError
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.etcd.types import Fence
from wavepp.infra.tasks import TaskOwner
from wavepp.router import pipeline as pipeline_module
from wavepp.router.config import RouterConfig
from wavepp.router.pipeline import Pipeline


class Refusing:
    """Refuses to raise the counter with these errors, one after the other, then raises it."""

    def __init__(self, errors: Sequence[EtcdError]) -> None:
        self.errors = list(errors)
        self.asked = asyncio.Event()
        self.fences: list[Fence] = []

    async def raise_counter(self, _key: str, fences: Sequence[Fence]) -> int:
        self.asked.set()
        self.fences += fences
        if self.errors:
            raise self.errors.pop(0)
        return 7


def made(client: Refusing, tasks: TaskOwner, events: list[Any]) -> Pipeline:
    keys = PipelineKeys("c", "p")
    pipeline = Pipeline(
        RouterConfig(),
        cast(EtcdClient, client),
        keys,
        Fence(keys.router, 5),
        1,
        tasks,
        apply=events.append,
        on_ready=events.append,
        superseded=lambda: None,
        step_bound=StepBound(0.0, 1.0),
    )
    # What `_announce` would send goes to a stage that there is not.
    pipeline._announce = events.append  # type: ignore[method-assign]
    return pipeline


async def test_a_router_that_was_deposed_while_it_raises_the_epoch_lives_on() -> None:
    stop, events = asyncio.Event(), list[Any]()
    async with TaskOwner(stop) as tasks:
        etcd = Refusing([FencedError("leader", 5, 9)] * 1000)
        pipeline = made(etcd, tasks, events)
        pipeline.epoch_event(ep.StageUp(StageIndex(0), Incarnation("i"), ""))
        await asyncio.wait_for(etcd.asked.wait(), 5.0)
        pipeline.close()
        assert pipeline._raising is not None
        await asyncio.wait({pipeline._raising}, timeout=5.0)
        assert pipeline._raising.cancelled()
        assert not stop.is_set()
        assert not events


async def test_a_router_that_is_elected_again_raises_the_epoch_under_its_new_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline_module, "RAISE_RETRY_S", 0.0)
    events = list[Any]()
    async with TaskOwner(asyncio.Event()) as tasks:
        etcd = Refusing([FencedError("leader", 5, 0)])
        pipeline = made(etcd, tasks, events)
        pipeline.epoch_event(ep.StageUp(StageIndex(0), Incarnation("i"), ""))
        pipeline.renew(Fence("leader", 9))
        assert pipeline._raising is not None
        await asyncio.wait_for(pipeline._raising, 5.0)
        assert [event.epoch for event in events] == [7]
        assert etcd.fences[-1] == Fence("leader", 9)
        pipeline.close()


async def test_a_stage_that_comes_as_another_process_ends_the_pause_before_an_epoch() -> None:
    async with TaskOwner(asyncio.Event()) as tasks, asyncio.timeout(5.0):
        etcd, events = Refusing([]), list[Any]()
        pipeline = made(etcd, tasks, events)
        pipeline.keeper.tries = 30
        pipeline.keeper.phase = ep.EpochPhase.READY
        pipeline.keeper._known[StageIndex(0)] = Incarnation("i")
        pipeline.epoch_event(ep.StageUp(StageIndex(0), Incarnation("i"), ""))
        raising = pipeline._raising
        assert raising is not None
        assert not (await asyncio.wait({raising}, timeout=0.05))[0], "it pauses"
        assert not etcd.asked.is_set()
        before = asyncio.get_running_loop().time()
        pipeline.epoch_event(ep.StageUp(StageIndex(0), Incarnation("another"), ""))
        await raising
        assert asyncio.get_running_loop().time() - before < ep.PAUSE_MAX_S / 2
        pipeline.close()


@pytest.mark.parametrize("error", [EtcdUnavailableError("away"), EtcdReadOnlyError("full")])
async def test_an_epoch_is_raised_when_etcd_can_again(error: EtcdError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "RAISE_RETRY_S", 0.0)
    stop, events = asyncio.Event(), list[Any]()
    async with TaskOwner(stop) as tasks:
        pipeline = made(Refusing([error, error]), tasks, events)
        pipeline.epoch_event(ep.StageUp(StageIndex(0), Incarnation("i"), ""))
        assert pipeline._raising is not None
        await asyncio.wait_for(pipeline._raising, 5.0)
        assert [event.epoch for event in events] == [7]
        assert not stop.is_set()
        pipeline.close()
