"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavepp.core.errors import WaveppError
from wavepp.sim.files import require_writable


def test_asking_whether_a_file_can_be_written_leaves_nothing_and_changes_nothing(tmp_path: Path) -> None:
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
