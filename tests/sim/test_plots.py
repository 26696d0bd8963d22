"""Pictures of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavepp.core.errors import WaveppError
from wavepp.sim.plots import plot_waves, require_writable
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


def test_asking_whether_a_picture_can_be_written_leaves_nothing_and_changes_nothing(tmp_path: Path) -> None:
    there, absent = tmp_path / "there.svg", tmp_path / "new" / "absent.svg"
    there.write_text("kept")
    for out in (there, absent):
        require_writable(out)
    assert there.read_text() == "kept"
    assert not absent.exists()
    assert absent.parent.is_dir()
    dangling, target = tmp_path / "link.svg", tmp_path / "target.svg"
    dangling.symlink_to(target)
    require_writable(dangling)
    assert dangling.is_symlink()
    with pytest.raises(WaveppError, match="cannot write"):
        require_writable(tmp_path)
