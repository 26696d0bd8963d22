"""`python -m perf.sim grid`: every workload, depth and concurrency with every policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, get_args

import typer
from perf.sim.grid import QUICK_WORKLOADS, GridPlan, as_json, cells, run_grid
from perf.sim.plots import plot_grid
from perf.sim.views import grid_table, verdict_lines

from wavepp.cli.sim.sim import DEFAULT_PROFILE, JobsOption, ProfileOption, numbers, progress_bar
from wavepp.cli.terminal import errors_as_lines, stdout
from wavepp.core.errors import InvalidInputError
from wavepp.profiles.profile import load_profile
from wavepp.sim.experiment import Rules, SimPolicy
from wavepp.sim.files import require_writable, write_text
from wavepp.sim.workload import WORKLOADS


def grid(
    profile: ProfileOption = DEFAULT_PROFILE,
    stages: Annotated[str, typer.Option(help="Pipeline depths, like 4,8,16.")] = "4,8,16",
    concurrency: Annotated[str, typer.Option(help="Clients, like 1,2,4; closed loop.")] = "1,2,4,8,16,32,64,128",
    workload: Annotated[str, typer.Option(help="Only workloads whose name has this in it, e.g. 'cold'.")] = "",
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each cell.")] = 5,
    requests: Annotated[int, typer.Option(min=2, max=10_000, help="Requests of each client.")] = 50,
    rules: Annotated[str, typer.Option(help="Dispatch rules: router (those of the services) or paper.")] = "router",
    lockstep_ms: Annotated[float, typer.Option(min=0, max=1e6, help="The baseline's admission of a request.")] = 64.4,
    quick: Annotated[bool, typer.Option("--quick", help="Four workloads, few clients, two seeds: a minute.")] = False,
    out: Annotated[Path | None, typer.Option(help="Directory for grid.json and pictures.")] = None,
    jobs: JobsOption = 0,
) -> None:
    """Run every workload, depth and concurrency with every policy; print utilisation, throughput, p50 and p95."""
    with errors_as_lines("grid", program="perf.sim"):
        if rules not in ("router", "paper"):
            raise InvalidInputError(f"--rules is router or paper, not {rules!r}")
        depths, clients = numbers("--stages", stages, 64), numbers("--concurrency", concurrency, 1024)
        chosen = [one for one in WORKLOADS if workload in one.name and (not quick or one.name in QUICK_WORKLOADS)]
        if not chosen:
            raise InvalidInputError(
                f"no workload has {workload!r} in its name; there are: {', '.join(one.name for one in WORKLOADS)}"
            )
        if quick:
            clients, seeds, requests = [c for c in clients if c in (1, 4, 16)] or clients[:1], 2, min(requests, 20)
        plan = GridPlan(
            profile=load_profile(profile),
            rules=Rules(paper=rules == "paper", lockstep_ms=lockstep_ms),
            cells=cells(chosen, depths, clients),
            policies=get_args(SimPolicy),
            seeds=seeds,
            requests_per_client=requests,
        )
        if out is not None:
            require_writable(out / "grid.json")
        with progress_bar("simulating") as progress:
            results = run_grid(plan, jobs, progress)
        console = stdout()
        console.print(
            f"simulated, profile {plan.profile.name}, rules of the {rules}; {seeds} seeds, {requests} requests a "
            f"client; lockstep admits in {lockstep_ms:g} ms a request\n{plan.profile.derived}",
            soft_wrap=True,
        )
        console.print(grid_table(results))
        for line in verdict_lines(results):
            console.print(line, soft_wrap=True)
        if out is not None:
            write_text(out / "grid.json", json.dumps(as_json(plan, results), indent=1) + "\n")
            for depth in depths:
                write_text(out / f"utilisation-pp{depth}.svg", plot_grid(results, depth))
            console.print(f"written: {out}/grid.json and a picture for each depth", soft_wrap=True)
