"""`wavepp sim`: the scheduler in virtual time. Nothing here needs a model, a mesh or an accelerator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavepp.cli.sim.study import study
from wavepp.cli.terminal import errors_as_lines, stderr, stdout
from wavepp.core.errors import InvalidInputError, WaveppError

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_PROFILE = "kimi-k3-gb300-pp8"

app = typer.Typer(
    name="sim", help="Simulate the scheduler: the router's own classes in virtual time.", no_args_is_help=True
)

app.command("study")(study)

ProfileOption = Annotated[str, typer.Option(help="Cost profile: one that comes with WavePP, or a JSON file.")]
JobsOption = Annotated[int, typer.Option(min=0, max=512, help="Processes; 0 = one a core.")]


@app.command("grid")
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
    from wavepp.cli.sim.view import grid_table, verdict_lines
    from wavepp.sim.experiment import SIM_POLICIES, Rules
    from wavepp.sim.grid import (
        QUICK_WORKLOADS,
        WORKLOADS,
        GridPlan,
        as_json,
        cells,
        run_grid,
    )
    from wavepp.sim.plots import plot_grid, require_plots, require_writable
    from wavepp.sim.profile import load_profile

    with errors_as_lines("sim grid"):
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
            policies=SIM_POLICIES,
            seeds=seeds,
            requests_per_client=requests,
        )
        if out is not None:
            require_plots()
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
            _write(out / "grid.json", as_json(plan, results))
            for depth in depths:
                plot_grid(results, depth, out / f"utilisation-pp{depth}.svg")
            console.print(f"written: {out}/grid.json and a picture for each depth", soft_wrap=True)


@app.command("waves")
def waves(
    out: Annotated[Path, typer.Option(help="Picture to write (SVG).")],
    profile: ProfileOption = DEFAULT_PROFILE,
    workload: Annotated[str, typer.Option(help="Name of a workload of the grid.")] = "4K on 36K",
    stages: Annotated[int, typer.Option(min=1, max=64, help="Pipeline depth.")] = 8,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Clients, closed loop.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompt lengths.")] = 0,
) -> None:
    """Draw the waves of one simulated run over the stages, for each policy, and say where the time went."""
    from wavepp.cli.sim.view import shares_table
    from wavepp.sim.bubbles import time_shares
    from wavepp.sim.experiment import Cell, Rules, SimPolicy, run_closed_loop, slowest_stage
    from wavepp.sim.grid import workload_by_name
    from wavepp.sim.plots import plot_waves, require_plots, require_writable
    from wavepp.sim.profile import load_profile

    with errors_as_lines("sim waves"):
        chosen, found = load_profile(profile), workload_by_name(workload)
        costs = chosen.stages(stages)
        slowest = costs.index(slowest_stage(costs))
        panels, rows = [], []
        policies: tuple[SimPolicy, ...] = ("static", "mpu", "cost")
        if out.suffix != ".svg":
            raise InvalidInputError(f"--out is {str(out)!r}; pictures are SVG, so give a name that ends in .svg")
        require_plots()
        require_writable(out)
        for policy in policies:
            cell = Cell(found, stages, concurrency)
            summary, log = run_closed_loop(
                cell, policy, chosen, Rules(), seed, requests_per_client=20, record_spans=True
            )
            spans = log.spans or []
            start = log.finished[concurrency - 1].done_ms
            shares = time_shares(spans, slowest, costs[slowest], start, log.finished[-1].done_ms)
            panels.append((f"{policy}: utilisation {summary.utilisation:.2f} (simulated, {workload})", spans))
            rows.append((policy, summary, shares))
        span_ms = 2.5 * max(summary.p50_ms for _, summary, _ in rows)
        plot_waves(panels, span_ms, 2.0 * span_ms, out)
        stdout().print(shares_table(rows))
        stdout().print(f"written: {out}", soft_wrap=True)


@app.command("profiles")
def profiles() -> None:
    """List the cost profiles that come with WavePP, and where they come from."""
    from wavepp.sim.profile import load_profile, profile_names

    with errors_as_lines("sim profiles"):
        for name in profile_names():
            found = load_profile(name)
            stdout().print(f"{name}: {found.derived}\n", soft_wrap=True)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """On stderr, a bar or, where that is no terminal, a line for every tenth; call it with (done, of)."""
    from rich.progress import Progress

    console = stderr()
    if not console.is_terminal:
        yield _tenths(console, what)
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _tenths(console: Console, what: str) -> Callable[[int, int], None]:
    def progress(done: int, of: int) -> None:
        if 10 * done // of > 10 * (done - 1) // of:
            console.print(f"{what}: {done} of {of}")

    return progress


def numbers(option: str, text: str, largest: int, example: str = "4,8,16") -> list[int]:
    """From text like `example`, ascending. Raises InvalidInputError."""
    try:
        values = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise InvalidInputError(f"{option} is {text!r}; it must be numbers like {example}") from None
    if not values or values[0] < 1 or values[-1] > largest:
        raise InvalidInputError(f"{option} is {text!r}; every number must be 1 to {largest}")
    return values


def _write(path: Path, content: dict[str, object]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise WaveppError(f"cannot write {path}: {error.strerror}") from error
