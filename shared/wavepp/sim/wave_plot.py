"""A picture of waves on their way through the stages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from wavepp.sim.results import WaveSpan
from wavepp.sim.svg import at, document, text

_COLOURS: Final = ("#1f6feb", "#e07b39", "#2a9d5c", "#b9436b", "#8457c9", "#c9a227")
_LEFT: Final = 44
_WIDTH: Final = 700
_STAGE: Final = 14
_STYLE: Final = f".wave{{fill:none;stroke-width:{_STAGE - 1}}}.heading{{font-weight:bold}}"


def plot_waves(title: str, panels: Sequence[tuple[str, Sequence[WaveSpan]]], start_ms: float, end_ms: float) -> str:
    """An SVG: one panel a run, its waves over stages between two moments."""
    scale, top = _WIDTH / (end_ms - start_ms), 38
    parts = [
        text(_LEFT, 16, title),
        text(_LEFT, 31, "Bar: a wave on a stage, in the colour of its first request. Grey: the stage is idle."),
    ]
    for heading, spans in panels:
        parts.append(f'<g class="heading">{text(_LEFT, top + 14, heading)}</g>')
        parts += _panel(spans, start_ms, end_ms, top + 20)
        top += 28 + _STAGE * (1 + max(span.stage for span in spans))
    for time_s in _ticks((end_ms - start_ms) / 1e3):
        x = _LEFT + scale * 1e3 * time_s
        parts.append(f'<path stroke="#000" d="M{at(x)} {top - 8}v5"/>{text(x, top + 9, f"{time_s:g}", "middle")}')
    parts.append(text(_LEFT + _WIDTH / 2, top + 25, "time, s", "middle"))
    return document(_LEFT + _WIDTH + 16, top + 34, _STYLE, parts)


def _panel(spans: Sequence[WaveSpan], start_ms: float, end_ms: float, top: int) -> Iterator[str]:
    stages = 1 + max(span.stage for span in spans)
    yield f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{_STAGE * stages}" fill="#e4e7ea"/>'
    middle = top + _STAGE * stages / 2
    yield f'<g transform="rotate(-90 14 {at(middle)})">{text(14, middle, "stage", "middle")}</g>'
    for stage in range(stages):
        yield text(_LEFT - 6, top + _STAGE * (stage + 0.78), str(stage), "end")
    bars = [""] * len(_COLOURS)
    scale = _WIDTH / (end_ms - start_ms)
    for span in spans:
        begin, end = max(span.start_ms, start_ms), min(span.end_ms, end_ms)
        if begin < end:
            x, y = _LEFT + scale * (begin - start_ms), top + _STAGE * (span.stage + 0.5)
            # A pixel less, so that two in a row can be told apart.
            bars[span.grant % len(_COLOURS)] += f"M{at(x)} {at(y)}h{at(max(0.5, scale * (end - begin) - 1))}"
    for colour, path in zip(_COLOURS, bars, strict=True):
        yield f'<path class="wave" stroke="{colour}" d="{path}"/>'


def _ticks(end: float) -> Iterator[float]:
    """Round numbers in [0, end], eleven at most."""
    power = 10.0 ** math.floor(math.log10(end / 10))
    step = power * next(factor for factor in (1, 2, 5, 10) if 10 * factor * power >= end)
    return (step * count for count in range(math.floor(end / step) + 1))
