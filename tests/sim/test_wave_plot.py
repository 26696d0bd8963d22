"""Pictures of waves."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from wavepp.sim.results import WaveSpan
from wavepp.sim.wave_plot import plot_waves

SPANS = [
    WaveSpan(wave, stage, 10.0 * (wave + stage), 10.0 * (wave + stage) + 9.0, 64, grant=wave)
    for stage in (0, 1)
    for wave in range(4)
]


def bars(picture: str) -> list[list[tuple[float, float, float]]]:
    """By panel and colour: x, y and length of every bar."""
    paths = [path for path in ElementTree.fromstring(picture).iter() if path.get("class") == "wave"]
    found = [re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)", path.get("d") or "") for path in paths]
    return [[(float(x), float(y), float(length)) for x, y, length in path] for path in found]


def test_the_same_results_give_the_same_picture() -> None:
    panels = [("static", SPANS), ("cost", SPANS)]
    assert plot_waves("twice", panels, 0.0, 50.0) == plot_waves("twice", panels, 0.0, 50.0)


def test_every_wave_is_a_bar_on_every_stage_as_long_as_its_step_and_coloured_by_its_grant() -> None:
    found = bars(plot_waves("a < b & c", [("static", SPANS)], 0.0, 50.0))
    assert [len(colour) for colour in found] == [2, 2, 2, 2, 0, 0]
    for first, second in found[:4]:
        assert second[0] - first[0] == 140.0, "10 of 50 ms, of 700 pixels"
        assert second[1] > first[1]
        assert first[2] == second[2] == 125.0, "9 ms, less the pixel between two bars"


def test_bars_end_where_the_picture_does() -> None:
    found = [bar for colour in bars(plot_waves("cut", [("static", SPANS)], 5.0, 32.0)) for bar in colour]
    assert len(found) == 7, "the last one begins after the end"
    left, right = min(x for x, _, _ in found), max(x + length for x, _, length in found)
    assert right - left <= 700.0
