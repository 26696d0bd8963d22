"""Pictures of the grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from perf.sim.grid import CellResult

from wavepp.sim.svg import at, document, text

_COLOURS: Final = {"static": "#8c98a4", "mpu": "#e8862e", "cost": "#1f5fd6", "lockstep": "#c2347a", "bound": "#000"}
_WIDTHS: Final = {"static": 5.5, "mpu": 3.0, "cost": 2.0, "lockstep": 1.6, "bound": 1.6}
"""Where lines lie on one another, the ones below can be seen."""

_LEFT: Final = 50
_TOP: Final = 62
_WIDTH: Final = 170
_HEIGHT: Final = 120
_COLUMN: Final = _WIDTH + _LEFT
_ROW: Final = _HEIGHT + 52
_STYLE: Final = (
    "path{stroke:#ddd}polyline{fill:none;stroke-linecap:round}.name{font-weight:bold}.bound{stroke-dasharray:.1 3}"
    + "".join(f".{name}{{stroke:{colour};stroke-width:{_WIDTHS[name]:g}}}" for name, colour in _COLOURS.items())
)


def plot_grid(results: Sequence[CellResult], stages: int) -> str:
    """An SVG: utilisation against concurrency, one panel a workload, for one pipeline depth."""
    shown = [result for result in results if result.cell.stages == stages]
    clients = sorted({result.cell.concurrency for result in shown})
    by_workload: dict[str, list[CellResult]] = {}
    for result in shown:
        by_workload.setdefault(result.cell.workload.name, []).append(result)
    columns = min(4, len(by_workload))
    parts = [
        text(_LEFT, 17, f"simulated: {stages} stages, utilisation of the slowest one against clients in closed loop")
    ]
    for index, name in enumerate(("bound", *shown[0].by_policy)):
        parts.append(f'<polyline class="{name}" points="{_LEFT + 90 * index},31 {_LEFT + 90 * index + 24},31"/>')
        parts.append(text(_LEFT + 90 * index + 32, 35, name))
    parts.append(f'<defs><g id="axes">{_axes(clients)}</g></defs>')
    for index, (name, cells) in enumerate(by_workload.items()):
        x, y = _LEFT + _COLUMN * (index % columns), _TOP + _ROW * (index // columns)
        parts.append(f'<g transform="translate({x} {y})"><use href="#axes"/><g class="name">{text(0, -7, name)}</g>')
        for policy in cells[0].by_policy:
            points = [(one.cell.concurrency, one.by_policy[policy].utilisation) for one in cells]
            parts.append(_line(policy, clients, points))
        parts.append(_line("bound", clients, [(one.cell.concurrency, one.bound.utilisation) for one in cells]) + "</g>")
    rows = -(-len(by_workload) // columns)
    return document(max(520, _LEFT + _COLUMN * columns), _TOP + _ROW * rows, _STYLE, parts)


def _axes(clients: Sequence[int]) -> str:
    levels = "".join(f"M0 {at(_y(level))}h{_WIDTH}" for level in (0.0, 0.25, 0.5, 0.75, 1.0))
    names = [text(-5, _y(level) + 4, f"{level:g}", "end") for level in (0.0, 0.5, 1.0)]
    names += [text(_x(count, clients), _HEIGHT + 13, str(count), "middle") for count in clients]
    names.append(text(_WIDTH / 2, _HEIGHT + 27, "clients", "middle"))
    names.append(f'<g transform="rotate(-90)">{text(-_HEIGHT / 2, -31, "utilisation", "middle")}</g>')
    return f'<path d="{levels}"/>{"".join(names)}'


def _line(name: str, clients: Sequence[int], points: Sequence[tuple[int, float]]) -> str:
    places = [f"{at(_x(count, clients))},{at(_y(value))}" for count, value in points]
    # A lone point is a dot: a line to itself, with round ends.
    return f'<polyline class="{name}" points="{" ".join(places if len(places) > 1 else places * 2)}"/>'


def _x(count: int, clients: Sequence[int]) -> float:
    """Logarithmic."""
    return _WIDTH * math.log(count / clients[0]) / math.log(max(2, clients[-1] / clients[0]))


def _y(utilisation: float) -> float:
    return _HEIGHT * (1.0 - utilisation)
