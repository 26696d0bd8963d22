"""`wavepp sim trace`: the whole mesh in virtual time, with caches that are too small."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from wavepp.cli.sim.sim import (
    ALL_POLICIES,
    DEFAULT_PROFILE,
    JobsOption,
    PoliciesOption,
    ProfileOption,
    policies_of,
    progress_bar,
)
from wavepp.cli.terminal import errors_as_lines, stdout
from wavepp.core.errors import InvalidInputError

StagesOption = Annotated[int, typer.Option(min=0, max=64, help="Pipeline depth; 0 = the profile's.")]
RunningOption = Annotated[int, typer.Option(min=1, max=4096, help="Requests that may hold a grant.")]


def trace(
    file: Annotated[Path, typer.Argument(help="Requests in Mooncake's format, JSON lines, perhaps in gzip.")],
    profile: ProfileOption = DEFAULT_PROFILE,
    policies: PoliciesOption = ALL_POLICIES,
    speed: Annotated[float, typer.Option(min=0.01, max=1000.0, help="How many times as fast requests come.")] = 1.0,
    requests: Annotated[int, typer.Option(min=0, help="Only so many, from the start; 0 = all.")] = 0,
    stages: StagesOption = 0,
    pool_tokens: Annotated[int, typer.Option(min=0, help="What each stage's cache holds; 0 = the profile's.")] = 0,
    running_max: RunningOption = 256,
    spread_s: Annotated[
        float,
        typer.Option(
            min=0.0, max=3600.0, help="Requests come up to so much of the trace's time after their stamps, at random."
        ),
    ] = 0.0,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each policy, which differ by --spread-s.")] = 1,
    jobs: JobsOption = 0,
) -> None:
    """Replay a trace of requests: real admission, caches, eviction and waiting, on stages that only take time."""
    from wavepp.cli.sim.view import replay_cells, replay_table
    from wavepp.profiles.profile import load_profile
    from wavepp.sim.timed_mesh import TimedSetup
    from wavepp.sim.trace import TRACE_BLOCK_TOKENS, read_trace, timed_asks
    from wavepp.sim.trace_replay import replay_all

    with errors_as_lines("sim trace"):
        names, found = policies_of(policies), load_profile(profile)
        if seeds > 1 and not spread_s:
            raise InvalidInputError(
                f"--seeds {seeds} goes with --spread-s above 0: without it nothing is drawn, so all runs are the same"
            )
        setups = [TimedSetup(found, name, TRACE_BLOCK_TOKENS, stages, pool_tokens, running_max) for name in names]
        arrivals = list(timed_asks(islice(read_trace(file), requests or None)))
        with progress_bar("simulating") as progress:
            results = replay_all(arrivals, setups, speed, 1e3 * spread_s, seeds, jobs, progress)
        console = stdout()
        tokens = pool_tokens or found.pool_tokens
        spread = f", each up to {spread_s:g} s after its stamp, {seeds} seeds" if spread_s else ""
        console.print(
            f"simulated, profile {found.name}, {len(arrivals)} requests at {speed:g}x{spread}, "
            f"pools of {tokens:,} tokens",
            soft_wrap=True,
        )
        console.print(found.derived, soft_wrap=True)
        table = replay_table(("policy",))
        for name, runs in zip(names, results, strict=True):
            table.add_row(name, *replay_cells(runs))
        console.print(table)
        console.print(
            "realised: reuse against one exact LRU cache of the same size, in order of arrival", soft_wrap=True
        )
