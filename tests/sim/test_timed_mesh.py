"""The whole mesh in virtual time."""

from __future__ import annotations

import random

import pytest

from sim_support import check_answers, run_random_work
from timed_support import BLOCK, PROFILE, ask, random_arrivals, setup
from wavepp.core.errors import InvalidInputError
from wavepp.core.waves.cost import StageCost
from wavepp.core.waves.policy_factory import POLICY_NAMES, PolicyName
from wavepp.sim import clients
from wavepp.sim.clients import ClosedLoop
from wavepp.sim.clock import VirtualClock
from wavepp.sim.delays import StreamDelays
from wavepp.sim.delivery import TimedOrder
from wavepp.sim.executor import FingerprintModel
from wavepp.sim.mesh import SimMesh
from wavepp.sim.mesh_config import MeshConfig
from wavepp.sim.schedule import Delays, ScheduleSim
from wavepp.sim.timed_mesh import TimedMesh, TimedSetup
from wavepp.sim.trace_replay import replay, replay_all, spread_out
from wavepp.sim.workload import Ask

STAGES = 4
SMALL_POOL = 60 * BLOCK


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_run_is_repeatable_and_leaves_nothing_behind(policy: PolicyName) -> None:
    arrivals = random_arrivals(80, every_ms=150.0, seed=1)
    results = {replay(arrivals, setup(policy, stages=STAGES, pool_tokens=SMALL_POOL)) for _ in range(2)}
    assert len(results) == 1
    (result,) = results
    assert result.summary.requests == 80
    assert result.failed == 0
    assert 0.0 < result.summary.utilisation < 1.0
    assert 0 < result.reused_tokens < result.prompt_tokens


def test_every_invariant_holds_while_blocks_are_evicted_and_requests_wait_for_room() -> None:
    arrivals = random_arrivals(60, every_ms=60.0, seed=2)
    result = replay(arrivals, setup(stages=3, pool_tokens=SMALL_POOL, validate=True))
    assert result.waiting.p95_ms > 10.0 * PROFILE.admission_ms, "room was short"
    assert result.waiting.queued_max > 1
    assert result.realised < 1.2


def test_with_room_for_everything_a_request_reuses_what_came_before_it() -> None:
    arrivals = [(60_000.0 * i, one) for i, (_, one) in enumerate(random_arrivals(30, every_ms=1.0, seed=3))]
    result = replay(arrivals, setup(stages=STAGES))
    assert result.realised == 1.0
    assert result.waiting.p99_ms == pytest.approx(PROFILE.admission_ms)


def test_a_request_that_never_fits_fails_alone() -> None:
    arrivals = [(0.0, ask(0, 0, 70 * BLOCK)), (0.0, ask(1, 0, 5 * BLOCK))]
    result = replay(arrivals, setup(stages=STAGES, pool_tokens=SMALL_POOL))
    assert (result.failed, result.summary.requests) == (1, 1)
    with pytest.raises(InvalidInputError, match="no request was answered"):
        replay(arrivals[:1], setup(stages=STAGES, pool_tokens=SMALL_POOL))


def test_a_trace_may_begin_at_any_time() -> None:
    arrivals = random_arrivals(30, every_ms=600.0, seed=4)
    late = [(time_ms + 1.7e12, ask) for time_ms, ask in arrivals]
    assert replay(late, setup(stages=STAGES)).summary.utilisation == pytest.approx(
        replay(arrivals, setup(stages=STAGES)).summary.utilisation, rel=1e-3
    )


def test_twice_the_speed_is_twice_the_load() -> None:
    arrivals = random_arrivals(60, every_ms=600.0, seed=4)
    slow, fast = (replay(arrivals, setup(stages=STAGES), speed) for speed in (1.0, 2.0))
    assert fast.summary.input_tokens_s == pytest.approx(2.0 * slow.summary.input_tokens_s, rel=0.1)
    with pytest.raises(InvalidInputError, match="speed"):
        replay(arrivals, setup(), 0.0)


# ---- the same schedule as the simulator of scheduling alone ----

MARGIN = {"static": 0.002, "mpu": 0.002, "cost": 0.005}
"""Of utilisation. A wave of only ends of grants passes through the stages here and takes a place in the ring."""


def closed_loop_utilisation(made: TimedSetup, shared: int, concurrency: int, count: int) -> tuple[float, float]:
    """Of the timed mesh and of the schedule alone, for equal requests: `shared` blocks of a document that was computed
    before, and 16 to 32 blocks of their own.
    """
    draw = random.Random(5)
    lengths = [BLOCK * shared + draw.randrange(16 * BLOCK, 32 * BLOCK) for _ in range(count + concurrency + 1)]

    mesh = TimedMesh(made)
    if shared:
        mesh.submit(ask(-1, shared, BLOCK * shared + 1))
        mesh.run()
        mesh.log.finished.clear()
    asks = iter(ask(number, shared, tokens) for number, tokens in enumerate(lengths))
    loop = ClosedLoop(mesh.clock, asks, concurrency, mesh.submit)
    mesh.on_finished = lambda one, finished: loop.answered()
    mesh.run(until=lambda: len(mesh.log.finished) >= count)
    assert all(one.cached_tokens == BLOCK * shared for one in mesh.log.finished)

    planner = made.mesh_config().planner_config()
    delays = Delays(PROFILE.hop_ms, PROFILE.admission_ms)
    alone = ScheduleSim(made.costs(), planner, made.make_policy(planner), delays)
    plain = iter(Ask(tokens, BLOCK * shared) for tokens in lengths)
    clients_alone = ClosedLoop(alone.clock, plain, concurrency, alone.submit)
    alone.on_finished = lambda finished: clients_alone.answered()
    alone.clock.run(until=lambda: len(alone.log.finished) >= count)

    skip = count // 5
    return mesh.log.summary(skip).utilisation, alone.log.summary(skip).utilisation


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize(("shared", "concurrency"), [(0, 4), (120, 8)])
def test_the_schedule_is_that_of_the_simulator_without_caches(
    policy: PolicyName, shared: int, concurrency: int
) -> None:
    mesh, alone = closed_loop_utilisation(setup(policy), shared, concurrency, 60)
    assert mesh == pytest.approx(alone, abs=MARGIN[policy])


# ---- faults ----


def test_a_stage_that_dies_in_mid_run_costs_time_but_no_answer() -> None:
    arrivals = random_arrivals(60, every_ms=100.0, seed=6)
    mesh = TimedMesh(setup(stages=STAGES, pool_tokens=4 * SMALL_POOL, validate=True))
    clients.replay(mesh.clock, ((time_ms + mesh.start_ms, one) for time_ms, one in arrivals), 1.0, mesh.submit)
    mesh.run(until=lambda: len(mesh.log.finished) >= 20)
    assert mesh.mesh.dispatcher.waves_in_flight > 1
    epoch, broken_ms = mesh.mesh.dispatcher.epoch, mesh.clock.now_ms
    mesh.mesh.kill_stage(2, down_ms=500.0)
    assert mesh.mesh.stages[2].sequencer.cache.usage()["kv"].cached == 0
    mesh.run()
    assert mesh.mesh.dispatcher.epoch > epoch
    assert not mesh.failures
    assert sorted(int(o.request) for o in mesh.mesh.outcomes.values()) == list(range(1, 61)), "each answered once"
    assert any(o.attempts > 1 for o in mesh.mesh.outcomes.values())
    assert min(f.done_ms for f in mesh.log.finished[20:]) > broken_ms + 500.0, "nothing is done while a stage is away"
    mesh.mesh.check_nothing_left()


def timed(stage_blocks: tuple[int, ...], seed: int, recurrent: tuple[bool, ...] = ()) -> SimMesh:
    """A small mesh that computes fingerprints, in time."""
    config = MeshConfig(stage_blocks=stage_blocks, recurrent=recurrent)
    costs = [StageCost(2.0, 0.5, 0.001).scaled(1.0 + 0.2 * (stage % 2)) for stage in range(config.stages)]
    delays = StreamDelays(hop=1.0, control=0.3, admit=0.4, rounds=0.7, ledger=3.0, etcd=2.0)
    return SimMesh(
        config, seed, delivery=TimedOrder(VirtualClock(), delays), model=FingerprintModel(config.block_tokens, costs)
    )


@pytest.mark.parametrize("seed", range(4))
def test_random_faults_in_virtual_time_cost_no_answer(seed: int) -> None:
    mesh = timed((40, 32, 64, 40), seed)
    wanted = run_random_work(mesh, 60, faults=10, poisoned=0.1)
    check_answers(mesh, wanted)
    mesh.check_nothing_left()


@pytest.mark.parametrize("seed", range(2))
def test_states_and_snapshots_are_right_in_virtual_time_too(seed: int) -> None:
    mesh = timed((40, 48), seed, recurrent=(False, True))
    wanted = run_random_work(mesh, 60, faults=4)
    check_answers(mesh, wanted)
    mesh.check_nothing_left()


def test_requests_are_spread_over_the_tick_they_were_stamped_in_by_the_seed() -> None:
    stamped = [(3_000.0 * (number // 4), ask(number, 0, 2 * BLOCK)) for number in range(40)]
    spread = spread_out(stamped, 3_000.0, seed=1)
    assert spread == spread_out(stamped, 3_000.0, seed=1) != spread_out(stamped, 3_000.0, seed=2)
    assert [at for at, _ in spread] == sorted({at for at, _ in spread}), "in order, none at the same time"
    late = {one.number: at - 3_000.0 * (one.number // 4) for at, one in spread}
    assert len(late) == 40
    assert min(late.values()) >= 0.0
    assert 2_000.0 < max(late.values()) < 3_000.0


def test_replays_in_processes_are_the_replays_alone_by_setup_and_seed() -> None:
    arrivals = random_arrivals(20, every_ms=150.0, seed=4)
    setups = [setup("static", stages=2), setup("cost", stages=STAGES)]
    found = replay_all(arrivals, setups, 2.0, 3_000.0, 2, 2, lambda done, of: None)
    for one, runs in zip(setups, found, strict=True):
        first, second = (replay(spread_out(arrivals, 3_000.0, seed), one, 2.0) for seed in range(2))
        assert runs.results == (first, second)
        assert first != second
    (as_stamped,) = replay_all(arrivals, setups[:1], 1.0, 0.0, 1, 1, lambda done, of: None)
    assert as_stamped.results == (replay(arrivals, setups[0]),)
