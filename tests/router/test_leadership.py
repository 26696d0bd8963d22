"""What the router derives from the stages' registrations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from wavepp.core.ids import RequestId, StageIndex
from wavepp.core.keys import Namespace, prefix_keys, root_key
from wavepp.core.router.requests import NewRequest
from wavepp.core.tokens import encode_tokens
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.session import Session
from wavepp.infra.etcd.types import Fence
from wavepp.infra.leader import Leader
from wavepp.infra.registration import StageRegistration
from wavepp.infra.registry import Leading
from wavepp.infra.tasks import TaskOwner
from wavepp.router.admin import AdminServicer
from wavepp.router.config import RouterConfig
from wavepp.router.errors import MovedError
from wavepp.router.leadership import Leadership, endpoint_alignment, planner_config, served_model, wave_tokens_min
from wavepp.router.relay import Relay
from wavepp.v1 import prefill_pb2, types_pb2


def stage(index: int, **changes: object) -> StageRegistration:
    facts: dict[str, object] = {
        "stage": index,
        "stages": 2,
        "incarnation": "i",
        "address": "127.0.0.1:1",
        "link_address": "",
        "first_layer": index,
        "last_layer": index + 1,
        "layers_total": 2,
        "model_name": "m",
        "model_type": "llama",
        "fingerprint": "f",
        "vocab_size": 100,
        "tokens_max": 1000,
        "dtype": "float32",
        "cache_dtype": "float32",
        "block_tokens": 32,
        "alignment_tokens": 32,
        "wave_tokens_max": 192,
        "wave_requests_max": 8,
        "eos_token_ids": (1, 2),
        "recurrent": False,
        "emulated": False,
        "kv_blocks": 40 - 10 * index,
        "state_slots": 0,
        "snapshot_slots": 0,
    }
    return StageRegistration.model_validate(facts | changes)


def config(**values: object) -> RouterConfig:
    return RouterConfig(run_dir=Path(), **values)  # type: ignore[arg-type]


def test_endpoints_align_to_what_every_stage_needs() -> None:
    assert endpoint_alignment(config(), [stage(0), stage(1, alignment_tokens=64)]) == 64


def test_on_a_fixed_grid_endpoints_lie_on_the_grid_too() -> None:
    stages = [stage(0), stage(1, alignment_tokens=64)]
    assert endpoint_alignment(config(chunk_grid="fixed"), stages) == 192


def test_the_smallest_pool_and_its_stage_limit_a_request() -> None:
    model = served_model(config(), [stage(0), stage(1)])
    assert (model.kv_blocks_min, model.kv_blocks_min_stage) == (30, 1)


@pytest.mark.parametrize(("limit", "expected"), [(None, 1000), (100, 100), (5000, 1000)])
def test_a_configured_prompt_limit_can_only_lower_the_models(limit: int | None, expected: int) -> None:
    assert served_model(config(prompt_tokens_max=limit), [stage(0), stage(1)]).prompt_tokens_max == expected


def test_the_smallest_wave_is_a_quarter_of_the_largest_unless_it_is_given() -> None:
    stages = [stage(0), stage(1)]
    assert wave_tokens_min(config(), stages) == 48
    assert wave_tokens_min(config(wave_tokens_min=16), stages) == 16
    assert wave_tokens_min(config(), [stage(0, wave_tokens_max=64), stage(1, wave_tokens_max=64)]) == 32, "a block"


@pytest.fixture
async def leadership() -> AsyncIterator[Leadership]:
    """Of a router that does not lead yet, whose stages are both registered. Nothing answers it."""
    async with TaskOwner(asyncio.Event()) as tasks:
        made = Leadership(config(), cast(EtcdClient, None), None, tasks)
        register(made, stage(0), stage(1))
        yield made
        made.step_down()


def register(leadership: Leadership, *stages: StageRegistration) -> None:
    leadership.stages_changed({s.stage: s for s in stages})


async def test_a_router_that_is_elected_while_a_stage_is_missing_leads_all_stages(leadership: Leadership) -> None:
    register(leadership, stage(0))
    leadership.lead(Fence("leader", 7))
    assert leadership.pipeline is not None
    assert leadership.pipeline.keeper.missing == (StageIndex(0), StageIndex(1))


async def test_stages_that_come_back_as_they_were_find_the_same_driver(leadership: Leadership) -> None:
    driver = leadership.driver
    register(leadership, stage(0))
    register(leadership, stage(0, incarnation="other"), stage(1))
    assert leadership.driver is driver


async def test_stages_of_another_shape_get_a_new_driver_and_pipeline(leadership: Leadership) -> None:
    leadership.lead(Fence("leader", 7))
    driver, pipeline = leadership.driver, leadership.pipeline
    changes: dict[str, object] = {"stages": 3, "layers_total": 3, "block_tokens": 64, "alignment_tokens": 64}
    register(leadership, *(stage(i, kv_blocks=9, **changes) for i in range(3)))
    assert leadership.leading
    assert leadership.driver not in (None, driver)
    assert leadership.pipeline not in (None, pipeline)
    assert leadership.pipeline is not None
    assert len(leadership.pipeline.keeper.missing) == 3


async def test_the_status_names_a_stage_that_goes_while_it_is_asked(
    leadership: Leadership, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = AdminServicer(leadership, Relay(leadership))

    async def ask_directory() -> prefill_pb2.DirectoryStatus:
        register(leadership)
        return prefill_pb2.DirectoryStatus()

    monkeypatch.setattr(admin, "_ask_directory", ask_directory)
    async with asyncio.timeout(10):
        status = await admin.GetStatus(prefill_pb2.GetStatusRequest(), cast(Any, None))
    assert [(s.stage, s.reachable) for s in status.stages] == [(0, False), (1, False)]


@pytest.mark.parametrize(("wanted", "stages_take", "expected"), [(4, 8, 4), (128, 8, 8)])
def test_a_wave_has_no_more_requests_than_the_stages_take(wanted: int, stages_take: int, expected: int) -> None:
    stages = [stage(i, wave_requests_max=stages_take) for i in range(2)]
    assert planner_config(config(wave_requests_max=wanted), stages).wave_requests_max == expected


def leading(token: int, instance: str = "other") -> Leading:
    return Leading(Leader(address="127.0.0.1:1", instance=instance), token)


async def test_a_router_that_hears_of_a_later_leader_steps_down_and_its_requests_move(leadership: Leadership) -> None:
    leadership.lead(Fence("leader", 7))
    turned = asyncio.create_task(leadership.turned())
    await asyncio.sleep(0)
    leadership.leader_changed(leading(9))
    assert not leadership.leading
    assert leadership.leader == leading(9).leader
    async with asyncio.timeout(5):
        await turned


@pytest.mark.parametrize("news", [None, leading(3), leading(7, instance="me")], ids=["nobody", "earlier", "itself"])
async def test_old_news_of_leaders_depose_nobody(leadership: Leadership, news: Leading | None) -> None:
    leadership.instance = "me"
    leadership.lead(Fence("leader", 7))
    leadership.leader_changed(news)
    assert leadership.leading
    assert leadership.leader is None


async def test_a_leader_that_is_named_once_more_is_no_news(leadership: Leadership) -> None:
    leadership.leader_changed(leading(9))
    turned = asyncio.create_task(leadership.turned())
    await asyncio.sleep(0)
    leadership.leader_changed(leading(9))
    await asyncio.sleep(0)
    assert not turned.done(), "what is on its way to it goes on"
    turned.cancel()


async def test_requests_do_not_wait_inside_a_router_that_does_not_lead(leadership: Leadership) -> None:
    leadership.lead(Fence("leader", 7))
    assert leadership.driver is not None
    call = leadership.driver.submit(new_request(), traced=False)
    leadership.superseded.set()
    leadership.step_down()
    with pytest.raises(MovedError):
        await call.result()


def new_request() -> NewRequest:
    namespace, tokens = Namespace("f", "float32", 32, None, None), encode_tokens(range(8))
    keys = prefix_keys(namespace, tokens)
    return NewRequest(RequestId("r"), tokens, root_key(namespace), keys, 1, frozenset(), 0, types_pb2.GrantContext())


async def test_a_router_that_is_elected_again_keeps_its_pipeline(leadership: Leadership) -> None:
    leadership.lead(Fence("leader", 7))
    pipeline = leadership.pipeline
    await leadership.begin(Fence("leader", 9), cast(Session, None))
    assert leadership.pipeline is pipeline
    assert leadership.leading
