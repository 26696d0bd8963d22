"""Pictures of results."""

from __future__ import annotations

from pathlib import Path

from wavepp.sim.plots import plot_waves
from wavepp.sim.results import WaveSpan


def test_the_same_results_give_the_same_file(tmp_path: Path) -> None:
    spans = [
        WaveSpan(wave, stage, 10.0 * (wave + stage), 10.0 * (wave + stage) + 9.0, 64, 1)
        for stage in (0, 1)
        for wave in range(4)
    ]
    first, again = tmp_path / "first.svg", tmp_path / "again.svg"
    for out in (first, again):
        plot_waves([("static", spans), ("cost", spans)], 0.0, 50.0, out)
    assert first.read_bytes().startswith(b"<?xml")
    assert first.read_bytes() == again.read_bytes()
