"""`python -m perf.sim tables`: the tables of docs/scheduling.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from wavepp.sim.experiment import SimPolicy

POLICIES = get_args(SimPolicy)


def table(cells: list[dict[str, Any]], stages: int) -> str:
    """Utilisation of one depth: a row per workload and policy, a column per concurrency."""
    shown = [cell for cell in cells if cell["stages"] == stages]
    clients = sorted({cell["concurrency"] for cell in shown})
    lines = [
        "| workload | | " + " | ".join(f"c = {count}" for count in clients) + " |",
        "|---|---|" + "---|" * len(clients),
    ]
    for workload in dict.fromkeys(cell["workload"] for cell in shown):
        row = {cell["concurrency"]: cell for cell in shown if cell["workload"] == workload}
        for policy in POLICIES:
            values = " | ".join(_utilisation(row[count], policy) for count in clients)
            lines.append(f"| {workload if policy == POLICIES[0] else ''} | {policy} | {values} |")
        lines.append(
            "| | bound | " + " | ".join(f"{row[count]['bound']['utilisation']:.3f}" for count in clients) + " |"
        )
    return "\n".join(lines)


def _utilisation(cell: dict[str, Any], policy: str) -> str:
    value = f"{cell['policies'][policy]['utilisation']:.3f}"
    return f"**{value}**" if policy == "cost" else value


def tables(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The grid.json of `grid --out DIR`.")],
) -> None:
    """Print the utilisation of every depth of a grid, in Markdown."""
    cells = json.loads(file.read_text())["cells"]
    for stages in sorted({cell["stages"] for cell in cells}):
        print(f"\n### P = {stages}\n\n{table(cells, stages)}")
    spread = max(one["spread"] for cell in cells for one in cell["policies"].values())
    print(f"\nThe largest spread over seeds of any cell is {spread:.3f}.")
