"""Tables of simulated results."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from wavepp.sim.advice import Outlook
from wavepp.sim.bubbles import TimeShares
from wavepp.sim.experiment import SimPolicy
from wavepp.sim.grid import CellResult
from wavepp.sim.results import Summary
from wavepp.sim.verdict import (
    COMPLETION_MAX,
    GAIN_MIN,
    OF_BOUND_EQUAL,
    OF_BOUND_MIXED,
    THROUGHPUT_MIN,
    compare,
    gain_over_mpu,
)


def grid_table(results: Sequence[CellResult]) -> Table:
    """A row per cell: utilisations, the bound, and what `cost` is against the better of static and mpu."""
    table = Table(
        title="utilisation of the slowest stage, +- the spread over seeds; tokens/s, p50 and p95 are of cost, x over "
        "the better of static and mpu"
    )
    policies = list(results[0].by_policy)
    for heading in (
        "workload",
        "P",
        "clients",
        *policies,
        "bound",
        "cost/bound",
        "tokens/s",
        "x",
        "p50",
        "x",
        "p95",
        "x",
    ):
        table.add_column(heading, justify="left" if heading == "workload" else "right")
    before = None
    for result in results:
        cell, found, cost = result.cell, compare(result), result.by_policy["cost"]
        if before not in (None, (cell.workload.name, cell.stages)):
            table.add_section()
        before = (cell.workload.name, cell.stages)
        table.add_row(
            cell.workload.name,
            str(cell.stages),
            str(cell.concurrency),
            *(f"{one.utilisation:.3f} +-{one.spread:.3f}" for one in result.by_policy.values()),
            f"{result.bound.utilisation:.3f}",
            f"{found.of_bound:.3f}",
            f"{cost.input_tokens_s:,.0f}",
            f"{found.throughput:.3f}",
            f"{cost.p50_ms / 1e3:.2f} s",
            f"{found.p50:.3f}",
            f"{cost.p95_ms / 1e3:.2f} s",
            f"{found.p95:.3f}",
        )
    return table


def verdict_lines(results: Sequence[CellResult]) -> list[str]:
    """How often `cost` reaches its goals, and where it does not."""
    found = [compare(result) for result in results]
    lines = []
    for name, goal in (
        ("throughput", f"throughput >= {THROUGHPUT_MIN} of the better of static and mpu"),
        ("p50", f"p50 <= {COMPLETION_MAX} of that policy's"),
        ("p95", f"p95 <= {COMPLETION_MAX} of that policy's"),
        ("bound", f"utilisation >= {OF_BOUND_EQUAL} of the bound, {OF_BOUND_MIXED} on mixed"),
    ):
        missed = [one for one in found if name in one.misses]
        lines.append(f"cost, {goal}: {len(found) - len(missed)} of {len(found)} cells")
        lines += [
            f"    missed: {one.result.cell.workload.name}, P = {one.result.cell.stages}, c = "
            f"{one.result.cell.concurrency}: throughput {one.throughput:.3f}, p50 {one.p50:.3f}, p95 {one.p95:.3f}, "
            f"of bound {one.of_bound:.3f}"
            for one in missed
        ]
    for stages in sorted({result.cell.stages for result in results}):
        gain = gain_over_mpu(results, stages)
        if gain is not None:
            lines.append(
                f"cost over mpu, reuse and short suffix, c = 1 to 4, P = {stages}: {gain:.2f} (geometric mean; goal "
                f"{GAIN_MIN} at P = 8 and 16)"
            )
    return lines


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
