"""Questions about the scheduler that are not cells of the grid. All in virtual time, closed loop."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wavepp.core.waves.cost import StageCost
from wavepp.core.waves.policy_factory import POLICY_NAMES, PolicyName, make_policy
from wavepp.profiles.profile import Profile
from wavepp.sim.bubbles import time_shares
from wavepp.sim.clients import ClosedLoop
from wavepp.sim.experiment import Cell, Rules, planner_config, run_closed_loop, sim_policy, slowest_stage
from wavepp.sim.results import Finished, quantile
from wavepp.sim.schedule import ScheduleSim
from wavepp.sim.workload import Ask, Workload, cold, mixed, reuse, short_suffix

_SHORT: Final = Workload("2K", ((1.0, 2048, 0, "short"),))
_HUGE: Final = Workload("600K", ((1.0, 600_000, 0, "huge"),))


# ---- a huge request among short ones ----


@dataclass(frozen=True, slots=True)
class Fairness:
    """Of the short requests, without and with a client that always has a huge one under way."""

    policy: PolicyName
    p50_alone_ms: float
    p99_alone_ms: float
    p50_beside_ms: float
    p99_beside_ms: float
    huge_ms: float
    utilisation_alone: float
    utilisation_beside: float


def fairness(profile: Profile, stages: int = 8, clients: int = 16, minutes: float = 30.0) -> list[Fairness]:
    """600K-token requests, one at a time, among 2K-token ones, for so many minutes of virtual time."""
    return [_fairness(profile, stages, clients, minutes, policy) for policy in POLICY_NAMES]


def _fairness(profile: Profile, stages: int, clients: int, minutes: float, policy: PolicyName) -> Fairness:
    alone, alone_use = _short_and_huge(profile, stages, clients, minutes, policy, huge=False)
    beside, beside_use = _short_and_huge(profile, stages, clients, minutes, policy, huge=True)
    quick = sorted(one.completion_ms for one in alone if one.kind == "short")
    slow = sorted(one.completion_ms for one in beside if one.kind == "short")
    huge = sorted(one.completion_ms for one in beside if one.kind == "huge")
    return Fairness(
        policy,
        quantile(quick, 0.5),
        quantile(quick, 0.99),
        quantile(slow, 0.5),
        quantile(slow, 0.99),
        quantile(huge, 0.5),
        alone_use,
        beside_use,
    )


def _short_and_huge(
    profile: Profile, stages: int, clients: int, minutes: float, policy: PolicyName, *, huge: bool
) -> tuple[list[Finished], float]:
    """Who was answered, and the utilisation, with the work of those that were not yet."""
    sim = _sim(profile, stages, policy)
    short_asks, huge_asks = _SHORT.asks(0), _HUGE.asks(0)

    def ask_again(finished: Finished) -> None:
        ask = next(huge_asks if finished.kind == "huge" else short_asks)
        sim.clock.after(0.0, lambda: sim.submit(ask))

    def first(ask: Ask) -> None:
        sim.clock.after(0.0, lambda: sim.submit(ask))

    sim.on_finished = ask_again
    for client in range(clients):
        first(next(huge_asks) if huge and client == 0 else next(short_asks))
    end_ms = 60_000.0 * minutes
    sim.clock.run(lambda: sim.clock.now_ms >= end_ms)
    costs = profile.stages(stages)
    stage = costs.index(slowest_stage(costs))
    shares = time_shares(sim.log.spans or [], stage, costs[stage], 0.0, end_ms)
    return sim.log.finished[clients:], shares.work


# ---- a wrong prior on unequal stages ----


@dataclass(frozen=True, slots=True)
class WrongPrior:
    """Utilisation after `waves` waves: begun with the true costs, and with the worst of the wrong priors."""

    workload: str
    concurrency: int
    fair: float
    worst: float
    worst_factors: tuple[float, float, float]
    no_prior: float


def wrong_priors(profile: Profile, stages: int = 8, waves: int = 200) -> list[WrongPrior]:
    """Every prior takes all stages for equal, and is off by 2, up or down or not, in launch, token and pair cost."""
    return [
        wrong_prior(profile, stages, waves, workload, concurrency)
        for workload in (cold(131_072), reuse(131_072), short_suffix(36_864), mixed(131_072))
        for concurrency in (1, 4, 16)
    ]


def wrong_prior(profile: Profile, stages: int, waves: int, workload: Workload, concurrency: int) -> WrongPrior:
    """One row of `wrong_priors`."""
    costs = profile.stages(stages)
    base = costs[0]

    def after(priors: Sequence[StageCost] | None) -> float:
        return _utilisation_after(profile, stages, waves, workload, concurrency, priors)

    def wrong(factors: tuple[float, float, float]) -> float:
        launch, token, pair = factors
        prior = StageCost(base.launch_ms * launch, base.token_ms * token, base.pair_ms * pair)
        return after([prior] * stages)

    factors = (0.5, 1.0, 2.0)
    worst, worst_factors = min((wrong(each), each) for each in itertools.product(factors, factors, factors))
    return WrongPrior(workload.name, concurrency, after(costs), worst, worst_factors, after(None))


def _utilisation_after(
    profile: Profile,
    stages: int,
    waves: int,
    workload: Workload,
    concurrency: int,
    priors: Sequence[StageCost] | None,
) -> float:
    policy = make_policy(
        "cost",
        stages=stages,
        wave_tokens_max=profile.wave_tokens_max,
        wave_tokens_min=profile.wave_tokens_min,
        block_tokens=profile.block_tokens,
        priors=priors,
        hop_ms=profile.hop_ms,
    )
    rules = Rules()
    config, delays = planner_config(profile, stages, rules), rules.delays(profile, "cost")
    sim = ScheduleSim(profile.stages(stages), config, policy, delays)
    loop = ClosedLoop(sim.clock, workload.asks(0), concurrency, sim.submit)
    sim.on_finished = lambda _: loop.answered()
    sim.clock.run(lambda: sim.log.waves >= waves)
    before = len(sim.log.finished)
    sim.clock.run(lambda: len(sim.log.finished) >= before + max(60, 25 * concurrency))
    return sim.log.summary(before).utilisation


# ---- where mpu loses ----


@dataclass(frozen=True, slots=True)
class MpuLoss:
    """Throughput relative to static, and waves per request, at reuse 256K with 32 clients."""

    room: int
    launch_ms: float
    mpu: float
    cost: float
    waves_static: float
    waves_mpu: float
    waves_cost: float


def mpu_losses(profile: Profile, stages: int = 8, clients: int = 32, seeds: int = 3) -> list[MpuLoss]:
    """With room for so many of the requests at once and so much launch cost."""
    return [
        mpu_loss(profile.model_copy(update={"launch_ms": launch}), stages, clients, seeds, room)
        for room in (4096, 14, 12, 10, 8)
        for launch in (6.0, 20.0, 40.0, 80.0)
    ]


def mpu_loss(profile: Profile, stages: int, clients: int, seeds: int, room: int) -> MpuLoss:
    """One row of `mpu_losses`."""
    cell = Cell(reuse(262_144), stages, clients)
    rates: dict[PolicyName, float] = {}
    waves: dict[PolicyName, float] = {}
    for policy in POLICY_NAMES:
        runs = [
            run_closed_loop(cell, policy, profile, Rules(running_max=room), seed, requests_per_client=20)[0]
            for seed in range(seeds)
        ]
        rates[policy] = sum(run.input_tokens_s for run in runs) / seeds
        waves[policy] = sum(run.waves_per_request for run in runs) / seeds
    return MpuLoss(
        room,
        profile.launch_ms,
        rates["mpu"] / rates["static"],
        rates["cost"] / rates["static"],
        waves["static"],
        waves["mpu"],
        waves["cost"],
    )


# ---- two cold prompts that meet ----


@dataclass(frozen=True, slots=True)
class TwoCold:
    """Two equal cold prompts, the later one sent `offset` of a prompt's work after the first: completion by policy,
    (first, later), in ms.
    """

    prompt_tokens: int
    stages: int
    offset: float
    completion_ms: dict[PolicyName, tuple[float, float]]


def two_cold(profile: Profile) -> list[TwoCold]:
    """Prompts and depths as in the mixed cells of the grid, where two clients meet like this now and then."""
    return [
        two_cold_prompts(profile, stages, tokens, offset)
        for tokens, stages in ((65_536, 4), (65_536, 8), (131_072, 8), (131_072, 16), (262_144, 16))
        for offset in (0.0, 0.25, 0.5, 0.75)
    ]


def two_cold_prompts(profile: Profile, stages: int, tokens: int, offset: float) -> TwoCold:
    """One row of `two_cold`."""
    met = {policy: _meet(_sim(profile, stages, policy), tokens, offset) for policy in POLICY_NAMES}
    return TwoCold(tokens, stages, offset, met)


def _meet(sim: ScheduleSim, tokens: int, offset: float) -> tuple[float, float]:
    later_ms = offset * sim.work_ms(Ask(tokens, 0))
    # The one that is sent later is behind the first even if they come at the same time.
    sim.clock.at(0.0, lambda: sim.submit(Ask(tokens, 0, "first")))
    sim.clock.at(later_ms, lambda: sim.submit(Ask(tokens, 0, "later")))
    sim.clock.run(lambda: len(sim.log.finished) == 2)
    took = {one.kind: one.completion_ms for one in sim.log.finished}
    return took["first"], took["later"]


def _sim(profile: Profile, stages: int, policy: PolicyName) -> ScheduleSim:
    rules = Rules()
    costs, delays = profile.stages(stages), rules.delays(profile, policy)
    chosen = sim_policy(policy, profile, costs, delays.hop, 1.0)
    return ScheduleSim(costs, planner_config(profile, stages, rules), chosen, delays, record_spans=True)
