"""`wavepp sim`: the scheduler in virtual time. Nothing here needs a model, a mesh or an accelerator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavepp.cli.terminal import errors_as_lines, stderr, stdout
from wavepp.core.errors import InvalidInputError
from wavepp.core.waves.policy_factory import POLICY_NAMES, PolicyName

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_PROFILE = "kimi-k3-gb300-pp8"
ALL_POLICIES = ",".join(POLICY_NAMES)

app = typer.Typer(
    name="sim", help="Simulate the scheduler: the router's own classes in virtual time.", no_args_is_help=True
)

ProfileOption = Annotated[str, typer.Option(help="Cost profile: one that comes with WavePP, or a JSON file.")]
PoliciesOption = Annotated[str, typer.Option(help="Wave policies, like mpu,cost.")]
JobsOption = Annotated[int, typer.Option(min=0, max=512, help="Processes; 0 = one a core.")]


@app.command("waves")
def waves(
    out: Annotated[Path, typer.Option(help="Picture to write (SVG).")],
    profile: ProfileOption = DEFAULT_PROFILE,
    workload: Annotated[str, typer.Option(help="Name of a workload, like 'reuse 128K'.")] = "4K on 36K",
    stages: Annotated[int, typer.Option(min=1, max=64, help="Pipeline depth.")] = 8,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Clients, closed loop.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompt lengths.")] = 0,
    policies: PoliciesOption = ALL_POLICIES,
) -> None:
    """Draw the waves of one simulated run over the stages, for each policy, and say where the time went."""
    from wavepp.cli.sim.view import shares_table
    from wavepp.profiles.profile import load_profile
    from wavepp.sim.bubbles import time_shares
    from wavepp.sim.experiment import Cell, Rules, run_closed_loop, slowest_stage
    from wavepp.sim.files import require_writable, write_text
    from wavepp.sim.wave_plot import plot_waves
    from wavepp.sim.workload import workload_by_name

    with errors_as_lines("sim waves"):
        chosen, found, names = load_profile(profile), workload_by_name(workload), policies_of(policies)
        costs = chosen.stages(stages)
        slowest = costs.index(slowest_stage(costs))
        panels, rows = [], []
        if out.suffix != ".svg":
            raise InvalidInputError(f"--out is {str(out)!r}; pictures are SVG, so give a name that ends in .svg")
        require_writable(out)
        for policy in names:
            cell = Cell(found, stages, concurrency)
            summary, log = run_closed_loop(
                cell, policy, chosen, Rules(), seed, requests_per_client=20, record_spans=True
            )
            spans = log.spans or []
            start = log.finished[concurrency - 1].done_ms
            shares = time_shares(spans, slowest, costs[slowest], start, log.finished[-1].done_ms)
            parts = (("utilisation", summary.utilisation), ("launches", shares.launches), ("idle", shares.idle))
            panels.append((f"{policy}: " + ", ".join(f"{name} {share:.0%}" for name, share in parts), spans))
            rows.append((policy, summary, shares))
        span_ms = 2.0 * max(summary.p50_ms for _, summary, _ in rows)
        what = f"simulated: {concurrency} clients, {workload}, {stages} stages, profile {chosen.name}"
        write_text(out, plot_waves(what, panels, span_ms, 2.0 * span_ms))
        stdout().print(shares_table(rows))
        stdout().print(f"written: {out}", soft_wrap=True)


@app.command("profiles")
def profiles() -> None:
    """List the cost profiles that come with WavePP, and where they come from."""
    from wavepp.profiles.profile import load_profile, profile_names

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


def policies_of(text: str) -> list[PolicyName]:
    """From text like mpu,cost, in the order of POLICY_NAMES. Raises InvalidInputError."""
    wanted = text.split(",")
    chosen = [name for name in POLICY_NAMES if name in wanted]
    if len(chosen) != len(wanted):
        raise InvalidInputError(f"--policies is {text!r}; give some of {','.join(POLICY_NAMES)}, each once")
    return chosen
