"""Files that commands write at the end of long runs."""

from __future__ import annotations

import os
from pathlib import Path

from wavepp.core.errors import WaveppError


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


def write_text(out: Path, content: str) -> None:
    """Its folder is there. Raises WaveppError."""
    try:
        out.write_text(content)
    except OSError as error:
        raise WaveppError(f"cannot write {out}: {error.strerror}") from error
