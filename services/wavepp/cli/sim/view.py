"""Tables of simulated results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from wavepp.sim.advice import Outlook
from wavepp.sim.bubbles import TimeShares
from wavepp.sim.experiment import SimPolicy
from wavepp.sim.results import Summary
from wavepp.sim.seeds import Result, Seeds
from wavepp.sim.trace_replay import ReplayResult


def shares_table(rows: Sequence[tuple[SimPolicy, Summary, TimeShares]]) -> Table:
    """Where the slowest stage's time went."""
    table = Table(title="time of the slowest stage")
    for heading in ("policy", "work", "launches", "starved", "uneven waves", "waves/request", "p50", "input tok/s"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for policy, summary, shares in rows:
        table.add_row(
            policy,
            *(f"{share:.1%}" for share in (shares.work, shares.launches, shares.starved, shares.uneven)),
            f"{summary.waves_per_request:.2f}",
            f"{summary.p50_ms / 1e3:.2f} s",
            f"{summary.input_tokens_s:,.0f}",
        )
    return table


def outlooks_table(outlooks: Sequence[Outlook]) -> Table:
    """A row per choice, the best first."""
    table = Table(title="what to expect; shares are of the slowest stage's time")
    for heading in ("P", "pipelines", "M", "policy", "input tok/s", "p50", "p95"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for heading in ("utilisation", "bound", "launches", "starved", "uneven waves"):
        table.add_column(heading, justify="right")
    for one in outlooks:
        shares = (one.summary.utilisation, one.bound.utilisation, one.shares.launches)
        table.add_row(
            str(one.choice.stages),
            str(one.choice.pipelines),
            f"{one.choice.wave_tokens_max:,}",
            one.choice.policy,
            f"{one.input_tokens_s:,.0f}",
            f"{one.summary.p50_ms / 1e3:.2f} s",
            f"{one.summary.p95_ms / 1e3:.2f} s",
            *(f"{share:.1%}" for share in (*shares, one.shares.starved, one.shares.uneven)),
        )
    return table


def outlook_lines(outlook: Outlook) -> list[str]:
    """What to take, and what keeps it from more."""
    choice, shares = outlook.choice, outlook.shares
    pipelines = "1 pipeline" if choice.pipelines == 1 else f"{choice.pipelines} pipelines"
    take = (
        f"take {pipelines} of {choice.stages} stages with --policy {choice.policy} "
        f"--wave-tokens-max {choice.wave_tokens_max}: {outlook.input_tokens_s:,.0f} input tokens/s, p50 "
        f"{outlook.summary.p50_ms / 1e3:.2f} s, p95 {outlook.summary.p95_ms / 1e3:.2f} s"
    )
    causes = [
        (shares.launches, "launches: fewer, larger waves would need more requests under way"),
        (shares.starved, "starved: too few requests under way to fill every stage; send more at a time"),
        (shares.uneven, "uneven waves: waves of different length wait for each other, or for a hop"),
    ]
    return [
        take,
        *(f"  {share:.1%} lost to {cause}" for share, cause in sorted(causes, reverse=True) if share >= 0.005),
    ]


def replay_table(first: Sequence[str]) -> Table:
    """To be filled with what is said `first`, and `replay_cells`."""
    table = Table(title="times in s; wait: from arrival to grant; queued: at most; +-: highest - lowest of the seeds")
    last = ("tokens/s", "reuse", "realised", "wait p99", "queued", "failed")
    for heading in (*first, "utilisation", "p50", "p95", "p99", *last):
        table.add_column(heading, justify="right")
    return table


def replay_cells(runs: Seeds[ReplayResult]) -> list[str]:
    """Means over the seeds, for a row of `replay_table`."""
    summaries, waits = runs.each(lambda one: one.summary), runs.each(lambda one: one.waiting)
    return [
        f"{summaries.mean(lambda one: one.utilisation):.3f}",
        mean_and_spread(summaries, lambda one: one.p50_ms / 1e3, 2),
        mean_and_spread(summaries, lambda one: one.p95_ms / 1e3, 2),
        f"{summaries.mean(lambda one: one.p99_ms) / 1e3:.2f}",
        f"{summaries.mean(lambda one: one.input_tokens_s):,.0f}",
        f"{runs.mean(lambda one: one.reuse):.3f}",
        f"{runs.mean(lambda one: one.realised):.3f}",
        f"{waits.mean(lambda one: one.p99_ms) / 1e3:.2f}",
        str(max(one.queued_max for one in waits.results)),
        str(sum(one.failed for one in runs.results)),
    ]


def mean_and_spread(runs: Seeds[Result], value: Callable[[Result], float], digits: int) -> str:
    """The mean, and how far apart the seeds are where there are several."""
    mean = f"{runs.mean(value):.{digits}f}"
    return f"{mean} +-{runs.spread(value):.{digits}f}" if len(runs.results) > 1 else mean
