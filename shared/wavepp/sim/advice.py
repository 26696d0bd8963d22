"""Which pipeline depth, wave size and policy suit a workload on a number of devices: tried in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from wavepp.core.errors import InvalidInputError
from wavepp.core.waves.policy_factory import POLICY_NAMES, PolicyName
from wavepp.profiles.profile import Profile
from wavepp.sim.bound import Bound
from wavepp.sim.bubbles import TimeShares, time_shares
from wavepp.sim.experiment import Cell, Rules, bound_of, run_closed_loop, slowest_stage
from wavepp.sim.results import Summary
from wavepp.sim.workload import Workload

_AS_GOOD: Final = 0.99
"""Choices within so much of the best throughput are equal; then the shorter tail decides."""

_AS_QUICK: Final = 1.02
"""And tails up to so many times the shortest one."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`pipelines` pipelines of `stages` devices each, with waves of at most `wave_tokens_max`."""

    stages: int
    pipelines: int
    wave_tokens_max: int
    policy: PolicyName


@dataclass(frozen=True, slots=True)
class Outlook:
    """What to expect of a choice. `input_tokens_s`: of all pipelines together. The rest is of a pipeline with the most
    clients; `shares`: of its slowest stage.
    """

    choice: Choice
    input_tokens_s: float
    summary: Summary
    bound: Bound
    shares: TimeShares


def choices(devices: int, stages: Sequence[int], wave_tokens: Sequence[int]) -> list[Choice]:
    """All that use every device. Raises InvalidInputError when there is none."""
    depths = [depth for depth in stages if devices % depth == 0]
    if not depths:
        wanted = " or ".join(map(str, stages))
        fitting = ", ".join(str(depth) for depth in range(1, devices + 1) if devices % depth == 0)
        raise InvalidInputError(
            f"{devices} devices cannot be split into pipelines of {wanted} stages; give stages that divide them "
            f"({fitting}) or other --devices"
        )
    return [
        Choice(depth, devices // depth, tokens, policy)
        for depth in depths
        for tokens in wave_tokens
        for policy in POLICY_NAMES
    ]


def look_into(
    options: Sequence[Choice],
    workload: Workload,
    clients: int,
    profile: Profile,
    rules: Rules,
    progress: Callable[[int, int], None],
) -> list[Outlook]:
    """Simulate every choice, clients dealt out to its pipelines; the best first."""
    found = []
    for done, choice in enumerate(options, 1):
        found.append(_outlook(choice, workload, clients, profile, rules))
        progress(done, len(options))
    return sorted(found, key=lambda one: -one.input_tokens_s)


def best(outlooks: Sequence[Outlook]) -> Outlook:
    """The highest throughput; among those about as high the shortest p95; among those about as short the
    fewest stages, then `cost`, then the largest waves."""
    highest = max(one.input_tokens_s for one in outlooks)
    near = [one for one in outlooks if one.input_tokens_s >= _AS_GOOD * highest]
    shortest_ms = min(one.summary.p95_ms for one in near)
    quick = [one for one in near if one.summary.p95_ms <= _AS_QUICK * shortest_ms]

    def rank(one: Outlook) -> tuple[int, bool, int]:
        return one.choice.stages, one.choice.policy != "cost", -one.choice.wave_tokens_max

    return min(quick, key=rank)


def _outlook(choice: Choice, workload: Workload, clients: int, profile: Profile, rules: Rules) -> Outlook:
    smallest = min(profile.wave_tokens_min, max(profile.block_tokens, choice.wave_tokens_max // 2))
    fitted = profile.model_copy(update={"wave_tokens_max": choice.wave_tokens_max, "wave_tokens_min": smallest})
    each, more = divmod(clients, choice.pipelines)
    fuller = _run(choice, workload, each + 1 if more else each, fitted, rules)
    if not more:
        return replace(fuller, input_tokens_s=choice.pipelines * fuller.input_tokens_s)
    rest = _run(choice, workload, each, fitted, rules).input_tokens_s if each else 0.0
    return replace(fuller, input_tokens_s=more * fuller.input_tokens_s + (choice.pipelines - more) * rest)


def _run(choice: Choice, workload: Workload, clients: int, profile: Profile, rules: Rules) -> Outlook:
    """One pipeline with so many clients."""
    cell = Cell(workload, choice.stages, clients)
    summary, log = run_closed_loop(cell, choice.policy, profile, rules, 0, requests_per_client=20, record_spans=True)
    costs = profile.stages(choice.stages)
    slowest = costs.index(slowest_stage(costs))
    start = log.finished[clients - 1].done_ms
    shares = time_shares(log.spans or [], slowest, costs[slowest], start, log.finished[-1].done_ms)
    return Outlook(choice, summary.input_tokens_s, summary, bound_of(cell, profile, rules), shares)
