"""How results are shown and kept: a table on the terminal, JSON in perf/results/."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from perf import machine

RESULTS: Final = Path(__file__).parent / "results"

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Goal:
    """What was aimed at, and what came out: `measured` has to be at most (or, with `at_least`, at least) `bound`."""

    what: str
    measured: float
    bound: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether it was reached."""
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        said = "met" if self.met else "NOT MET"
        return f"{said:>7}  {self.what}: {self.measured:.4g} {self.unit} (goal {sign} {self.bound:.4g})".rstrip()


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Text in columns: words to the left, numbers to the right, with a line under the head."""
    shown = [[_shown(cell) for cell in row] for row in rows]
    widths = [max(len(head[i]), *(len(row[i]) for row in shown), 0) for i in range(len(head))]
    numbers = [all(not isinstance(row[i], str) for row in rows) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            c.rjust(width) if number else c.ljust(width)
            for c, width, number in zip(cells, widths, numbers, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(head), line(["-" * width for width in widths]), *(line(row) for row in shown)])


def finish(
    program: str,
    arguments: Mapping[str, Any],
    results: Mapping[str, Any],
    goals: Sequence[Goal],
    load: machine.Load,
) -> Path:
    """Print goals, machine and load; write everything to a file, whose path is printed and returned."""
    described = machine.describe()
    print()
    for goal in goals:
        print(goal)
    print(f"machine: {', '.join(f'{name} {value}' for name, value in described.items())}")
    print(f"load over {load.seconds:.0f} s: {load}")
    content = {
        "program": program,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": described,
        "load": load.json(),
        "arguments": {name: _plain(value) for name, value in arguments.items()},
        "results": results,
        "goals": [{**asdict(goal), "met": goal.met} for goal in goals],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{program}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"written to {path}")
    return path


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}" if abs(cell) < 10 else f"{cell:.1f}"
    return f"{cell:,}" if isinstance(cell, int) else cell
