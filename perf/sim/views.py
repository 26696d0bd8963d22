"""Tables of the grid, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence

from perf.sim.grid import CellResult
from perf.sim.verdict import (
    COMPLETION_MAX,
    GAIN_MIN,
    OF_BOUND_EQUAL,
    OF_BOUND_MIXED,
    THROUGHPUT_MIN,
    compare,
    gain_over_mpu,
)
from rich.table import Table


def grid_table(results: Sequence[CellResult]) -> Table:
    """A row per cell: utilisations, the bound, and what `cost` is against the better of static and mpu."""
    table = Table(
        title="utilisation of the slowest stage, +- the spread over seeds; tokens/s, p50 and p95 are of cost, x over "
        "the better of static and mpu"
    )
    figures = ("bound", "cost/bound", "tokens/s", "x", "p50", "x", "p95", "x")
    for heading in ("workload", "P", "clients", *results[0].by_policy, *figures):
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
