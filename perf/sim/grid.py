"""The grid: every workload, concurrency and pipeline depth, with every policy and several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from wavepp.profiles.profile import Profile
from wavepp.sim.bound import Bound
from wavepp.sim.experiment import Cell, Rules, SimPolicy, bound_of, run_closed_loop
from wavepp.sim.parallel import run_all
from wavepp.sim.results import Summary
from wavepp.sim.seeds import Seeds, by_seeds
from wavepp.sim.workload import Workload

QUICK_WORKLOADS = ("cold 64K", "reuse 128K", "4K on 36K", "mixed 128K")


@dataclass(frozen=True, slots=True)
class GridPlan:
    """What to run."""

    profile: Profile
    rules: Rules
    cells: tuple[Cell, ...]
    policies: tuple[SimPolicy, ...]
    seeds: int
    requests_per_client: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One policy in one cell: means over the seeds, and the spread (highest - lowest) of the utilisation."""

    utilisation: float
    spread: float
    input_tokens_s: float
    p50_ms: float
    p95_ms: float
    waves_per_request: float


@dataclass(frozen=True, slots=True)
class CellResult:
    """A cell with all policies."""

    cell: Cell
    bound: Bound
    by_policy: dict[SimPolicy, Measured]


def cells(workloads: Iterable[Workload], stages: Sequence[int], concurrencies: Sequence[int]) -> tuple[Cell, ...]:
    """All combinations, in the order of the table."""
    return tuple(Cell(w, p, c) for w in workloads for p in stages for c in concurrencies)


def run_grid(plan: GridPlan, jobs: int, progress: Callable[[int, int], None]) -> list[CellResult]:
    """In `jobs` processes, 0 = one a core; results in the order of the cells. `progress`: (runs done, runs in all)."""
    runs = [(cell, policy, seed) for cell in plan.cells for policy in plan.policies for seed in range(plan.seeds)]
    # The long ones first, so that no process ends up alone with one; the seeds of a point stay together.
    runs.sort(key=lambda run: -run[0].concurrency * run[0].workload.mean(lambda prompt, cached: prompt - cached))
    points = [(cell, policy) for cell, policy, _ in runs[:: plan.seeds]]
    found = dict(
        zip(points, by_seeds(run_all(_run, [(plan, *run) for run in runs], jobs, progress), plan.seeds), strict=True)
    )
    return [
        CellResult(
            cell,
            bound_of(cell, plan.profile, plan.rules),
            {policy: _measured(found[cell, policy]) for policy in plan.policies},
        )
        for cell in plan.cells
    ]


def as_json(plan: GridPlan, results: Sequence[CellResult]) -> dict[str, object]:
    """For a file."""
    return {
        "profile": plan.profile.model_dump(exclude_none=True),
        "rules": asdict(plan.rules),
        "seeds": plan.seeds,
        "requests_per_client": plan.requests_per_client,
        "simulated": True,
        "cells": [
            {
                "workload": result.cell.workload.name,
                "stages": result.cell.stages,
                "concurrency": result.cell.concurrency,
                "bound": asdict(result.bound),
                "policies": {name: asdict(measured) for name, measured in result.by_policy.items()},
            }
            for result in results
        ],
    }


def _run(plan: GridPlan, cell: Cell, policy: SimPolicy, seed: int) -> Summary:
    count = plan.requests_per_client
    return run_closed_loop(cell, policy, plan.profile, plan.rules, seed, requests_per_client=count)[0]


def _measured(runs: Seeds[Summary]) -> Measured:
    return Measured(
        utilisation=runs.mean(lambda one: one.utilisation),
        spread=runs.spread(lambda one: one.utilisation),
        input_tokens_s=runs.mean(lambda one: one.input_tokens_s),
        p50_ms=runs.mean(lambda one: one.p50_ms),
        p95_ms=runs.mean(lambda one: one.p95_ms),
        waves_per_request=runs.mean(lambda one: one.waves_per_request),
    )
