"""One simulated cell: a profile, a workload, a number of stages and clients, a policy, a seed."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from wavepp.core.waves.cost import StageCost, amount
from wavepp.core.waves.policies import WavePolicy
from wavepp.core.waves.policy_factory import PolicyName, make_policy
from wavepp.core.waves.types import PlannerConfig
from wavepp.profiles.profile import Profile
from wavepp.sim.bound import Bound, equal_bound
from wavepp.sim.clients import ClosedLoop
from wavepp.sim.results import Log, Summary
from wavepp.sim.schedule import Delays, ScheduleSim
from wavepp.sim.workload import Workload

SimPolicy: TypeAlias = Literal["static", "mpu", "cost", "lockstep"]
REQUESTS_MIN: Final = 400
"""Requests of a run, where its clients are few: or there would be little to take a 95th percentile of."""

PAPER_REQUESTS_MIN: Final = 150


@dataclass(frozen=True, slots=True)
class Rules:
    """How the router dispatches.

    `paper`: a wave is planned when stage 0 is idle, arrivals are not spread, nothing overtakes, admission and hops take
    no time: what the paper's table was simulated with. Otherwise the rules of the router: one wave may wait at stage 0,
    arrivals are spread over waves while the pipeline is not full (policies that count tokens), later requests that fit
    whole fill a wave. `lockstep_ms`: what the baseline spends on every stage to admit a request. `running_max`:
    grants that there is room for at once.
    """

    paper: bool = False
    lockstep_ms: float = 64.4
    running_max: int = 4096

    def delays(self, profile: Profile, policy: SimPolicy) -> Delays:
        """Of one run."""
        hop = 0.0 if self.paper else profile.hop_ms
        if policy == "lockstep":
            return Delays(hop, 0.0, self.lockstep_ms)
        return Delays(hop, 0.0 if self.paper else profile.admission_ms)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is compared: everything but the policy and the seed."""

    workload: Workload
    stages: int
    concurrency: int

    def work_ms(self, slowest: StageCost) -> float:
        """Mean uncached work of a request on the slowest stage."""
        return self.workload.mean(lambda prompt, cached: slowest.work_ms(amount(cached, prompt - cached)))


def slowest_stage(costs: list[StageCost]) -> StageCost:
    """By the cost of tokens."""
    return max(costs, key=lambda cost: cost.token_ms)


def planner_config(profile: Profile, stages: int, rules: Rules) -> PlannerConfig:
    """As the router makes it from its stages."""
    return PlannerConfig(
        stages=stages,
        wave_tokens_max=profile.wave_tokens_max,
        wave_tokens_min=profile.wave_tokens_min,
        block_tokens=profile.block_tokens,
        alignment_tokens=profile.block_tokens,
        wave_requests_max=profile.wave_requests_max,
        stage0_waves_max=1 if rules.paper else 2,
        spread=not rules.paper,
        fill_ahead_max=0 if rules.paper else 64,
    )


def sim_policy(name: SimPolicy, profile: Profile, costs: list[StageCost], hop_ms: float, prior: float) -> WavePolicy:
    """`prior`: how many times as slow as they are the policy believes the stages to be at first."""
    real: PolicyName = "static" if name == "lockstep" else name
    return make_policy(
        real,
        stages=len(costs),
        wave_tokens_max=profile.wave_tokens_max,
        wave_tokens_min=profile.wave_tokens_min,
        block_tokens=profile.block_tokens,
        priors=[cost.scaled(prior) for cost in costs],
        hop_ms=hop_ms,
    )


def bound_of(cell: Cell, profile: Profile, rules: Rules) -> Bound:
    """With the launch, hop and admission cost of the run."""
    costs = profile.stages(cell.stages)
    slowest = slowest_stage(costs)
    delays = rules.delays(profile, "cost")
    return equal_bound(
        stages=cell.stages,
        concurrency=cell.concurrency,
        work_ms=cell.work_ms(slowest),
        launch_ms=slowest.launch_ms,
        hop_ms=delays.hop,
        admission_ms=delays.admission,
        others=sum(cost.token_ms for cost in costs) / slowest.token_ms - 1.0,
    )


def run_closed_loop(
    cell: Cell,
    policy: SimPolicy,
    profile: Profile,
    rules: Rules,
    seed: int,
    *,
    requests_per_client: int = 50,
    prior: float = 1.0,
    record_spans: bool = False,
) -> tuple[Summary, Log]:
    """Clients that ask again at once. The first answer of each is not measured, nor is what follows the last one."""
    costs = profile.stages(cell.stages)
    delays = rules.delays(profile, policy)
    sim = ScheduleSim(
        costs,
        planner_config(profile, cell.stages, rules),
        sim_policy(policy, profile, costs, delays.hop, prior),
        delays,
        running_max=rules.running_max,
        record_spans=record_spans,
    )
    loop = ClosedLoop(sim.clock, cell.workload.asks(seed), cell.concurrency, sim.submit)
    sim.on_finished = lambda _: loop.answered()
    least = PAPER_REQUESTS_MIN if rules.paper else REQUESTS_MIN
    wanted = max(requests_per_client * cell.concurrency, min(least, 8 * requests_per_client)) + cell.concurrency
    with _Uncollected():
        sim.clock.run(lambda: len(sim.log.finished) >= wanted)
    return sim.log.summary(skip=cell.concurrency), sim.log


class _Uncollected:
    """Nothing in a run makes cycles that matter; looking for them takes a tenth of its time."""

    def __enter__(self) -> None:
        self._was = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was:
            gc.enable()
