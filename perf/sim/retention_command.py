"""`python -m perf.sim retention`: how long prefixes stay in caches that do not hold all of them."""

from __future__ import annotations

from typing import Annotated

import typer
from perf.sim.retention import Retention, RetentionResult, retain_all

from wavepp.cli.sim.sim import (
    ALL_POLICIES,
    DEFAULT_PROFILE,
    JobsOption,
    PoliciesOption,
    ProfileOption,
    policies_of,
    progress_bar,
)
from wavepp.cli.sim.trace import RunningOption, StagesOption
from wavepp.cli.sim.view import mean_and_spread, replay_cells, replay_table
from wavepp.cli.terminal import errors_as_lines, stdout
from wavepp.core.errors import InvalidInputError
from wavepp.profiles.profile import load_profile
from wavepp.sim.seeds import Seeds
from wavepp.sim.timed_mesh import TimedSetup
from wavepp.sim.trace import TRACE_BLOCK_TOKENS


def retention(
    profile: ProfileOption = DEFAULT_PROFILE,
    policies: PoliciesOption = ALL_POLICIES,
    rates: Annotated[str, typer.Option(help="Requests a second, like 0.5,1.0; Poisson arrivals.")] = "0.5,0.75,1.0",
    documents: Annotated[int, typer.Option(min=1, max=100_000, help="Long prefixes.")] = 64,
    prefix: Annotated[int, typer.Option(min=512, max=4_000_000, help="Tokens of each.")] = 131_072,
    question: Annotated[int, typer.Option(min=1, max=1_000_000, help="Tokens that each request adds.")] = 4_096,
    skew: Annotated[float, typer.Option(min=0.0, max=10.0, help="The i-th document has weight 1 / i^skew.")] = 1.0,
    share: Annotated[float, typer.Option(min=0.01, max=10.0, help="Part of all prefixes that a pool holds.")] = 0.6,
    requests: Annotated[int, typer.Option(min=2, max=1_000_000)] = 1_000,
    stages: StagesOption = 0,
    running_max: RunningOption = 256,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each row; they draw the documents.")] = 5,
    jobs: JobsOption = 0,
) -> None:
    """Ask for long documents again and again: how often is a prefix still there (90 % of it or more)?"""
    with errors_as_lines("retention", program="perf.sim"):
        names, listed, found = policies_of(policies), _rates(rates), load_profile(profile)
        load = Retention(documents, prefix, question, skew)
        tokens = int(share * load.tokens)
        setups = [TimedSetup(found, name, TRACE_BLOCK_TOKENS, stages, tokens, running_max) for name in names]
        with progress_bar("simulating") as progress:
            points = retain_all(load, setups, listed, requests, seeds, jobs, progress)
        console = stdout()
        console.print(
            f"simulated, profile {found.name}; {load.documents} documents of {load.prefix_tokens:,} tokens, "
            f"weights 1 / i^{load.skew:g}, pools of {tokens:,} tokens; {requests} requests, {seeds} seeds",
            soft_wrap=True,
        )
        console.print(found.derived, soft_wrap=True)
        table = replay_table(("per s", "policy", "good hits", "LRU", "of LRU's"))
        for point in points:
            if point.setup is setups[0]:
                table.add_section()
            replays = point.runs.each(lambda one: one.replay)
            table.add_row(f"{point.rate_s:g}", point.setup.policy, *_hit_cells(point.runs), *replay_cells(replays))
        console.print(table)
        again = [one.again for one in points[0].runs.results]
        repeats = " to ".join(map(str, sorted({min(again), max(again)})))
        console.print(
            f"good hit: 90 % of the prefix reused, of {repeats} requests for a document that was "
            f"asked for before; LRU, realised: against one exact LRU cache of the same size, in order of arrival",
            soft_wrap=True,
        )


def _hit_cells(runs: Seeds[RetentionResult]) -> list[str]:
    return [
        f"{runs.mean(lambda one: one.rate):.3f}",
        f"{runs.mean(lambda one: one.oracle_rate):.3f}",
        mean_and_spread(runs, lambda one: one.of_oracle, 3),
    ]


def _rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0.0 < rate < 1e6 for rate in rates):
        raise InvalidInputError(f"--rates is {text!r}; it must be numbers above 0, like 0.5,1.0")
    return rates
