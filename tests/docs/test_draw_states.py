"""The drawings of states in docs/protocol.md are those of the tables, and a stale one is noticed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deployment_support import ROOT


@pytest.fixture
def protocol(tmp_path: Path) -> Path:
    """A copy of the document, beside a copy of the script."""
    shutil.copy(ROOT / "docs" / "draw_states.py", tmp_path)
    return Path(shutil.copy(ROOT / "docs" / "protocol.md", tmp_path))


def draw(protocol: Path, *args: str) -> str:
    """What the script complains about; empty when all is well."""
    command = [sys.executable, protocol.with_name("draw_states.py"), *args]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert bool(ended.returncode) == bool(ended.stderr)
    return ended.stderr


def test_the_document_is_current_and_drawing_it_again_changes_nothing(protocol: Path) -> None:
    before = protocol.read_text()
    assert draw(protocol, "--check") == ""
    assert draw(protocol) == ""
    assert protocol.read_text() == before


@pytest.mark.parametrize("line", ["RUNNING --> QUEUED: broken", "LOWERING --> READY: endpoints agree"])
def test_a_stale_document_is_noticed_left_as_it_is_and_mended_by_drawing(protocol: Path, line: str) -> None:
    current = protocol.read_text()
    stale = current.replace(line, "")
    assert stale != current
    protocol.write_text(stale)
    assert "run python docs/draw_states.py" in draw(protocol, "--check")
    assert protocol.read_text() == stale
    assert draw(protocol) == ""
    assert protocol.read_text() == current


def test_a_document_without_a_place_for_a_table_is_noticed(protocol: Path) -> None:
    protocol.write_text(protocol.read_text().replace("<!-- epoch:", "<!-- era:"))
    assert "no place for the states of: epoch" in draw(protocol, "--check")
