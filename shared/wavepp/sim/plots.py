"""Pictures of simulated results. Needs matplotlib (the `plots` extra)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wavepp.core.errors import WaveppError
from wavepp.sim.grid import CellResult
from wavepp.sim.results import WaveSpan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS: Final = {"static": "#9aa5b1", "mpu": "#e07b39", "cost": "#1f6feb", "lockstep": "#b9436b"}
_WAVE_COLOURS: Final = ("#1f6feb", "#e07b39", "#2a9d5c", "#b9436b", "#8457c9", "#c9a227")


class NoPlotsError(WaveppError):
    """matplotlib is not there."""


def require_plots() -> None:
    """Raises NoPlotsError now rather than after a long run."""
    _figure(1.0, 1.0)


def require_writable(out: Path) -> None:
    """Raises WaveppError now rather than after a long run: the file cannot be written. Its folder is made."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        new = not os.path.lexists(out)
        with out.open("ab"):
            pass
        if new:
            out.unlink()
    except OSError as error:
        raise WaveppError(f"cannot write {out}: {error.strerror}") from error


def plot_grid(results: Sequence[CellResult], stages: int, out: Path) -> None:
    """Utilisation against concurrency, one panel a workload, for one pipeline depth. Simulated, and labelled so."""
    shown = [result for result in results if result.cell.stages == stages]
    workloads = list(dict.fromkeys(result.cell.workload.name for result in shown))
    columns = min(4, len(workloads))
    rows = -(-len(workloads) // columns)
    figure = _figure(3.2 * columns, 2.6 * rows)
    for index, name in enumerate(workloads):
        axes = figure.add_subplot(rows, columns, index + 1)
        cells = [result for result in shown if result.cell.workload.name == name]
        clients = [result.cell.concurrency for result in cells]
        axes.plot(clients, [result.bound.utilisation for result in cells], color="black", linestyle=":", label="bound")
        for policy in cells[0].by_policy:
            values = [result.by_policy[policy].utilisation for result in cells]
            axes.plot(clients, values, color=_COLOURS[policy], marker="o", markersize=3, label=policy)
        axes.set_xscale("log", base=2)
        axes.set_xticks(clients, [str(count) for count in clients])
        axes.set_ylim(0.0, 1.02)
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
        if index == 0:
            axes.legend(fontsize=7)
    figure.suptitle(f"simulated utilisation against concurrency, P = {stages}", fontsize=10)
    _save(figure, out)


def plot_waves(panels: Sequence[tuple[str, Sequence[WaveSpan]]], start_ms: float, end_ms: float, out: Path) -> None:
    """One panel a run: its waves over stages between two moments."""
    figure = _figure(10.0, 1.8 * len(panels) + 0.4)
    for index, (title, spans) in enumerate(panels):
        axes = figure.add_subplot(len(panels), 1, index + 1)
        for span in spans:
            if span.end_ms > start_ms and span.start_ms < end_ms:
                colour = _WAVE_COLOURS[span.wave % len(_WAVE_COLOURS)]
                axes.barh(span.stage, span.end_ms - span.start_ms, left=span.start_ms, height=0.9, color=colour)
        axes.set_xlim(start_ms, end_ms)
        axes.set_ylabel("stage", fontsize=8)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=7)
    _save(figure, out)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoPlotsError(f"pictures need matplotlib: pip install 'wavepp[plots]' ({error})") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def _save(figure: Figure, out: Path) -> None:
    from matplotlib import rc_context

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Without the date, and with names that are no random ones, the same results give the same file.
        with rc_context({"svg.hashsalt": "wavepp"}):
            figure.savefig(out, metadata={"Date": None})
    except OSError as error:
        raise WaveppError(f"cannot write {out}: {error.strerror}") from error
