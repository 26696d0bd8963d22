"""What this process occupies."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes() -> int:
    """Resident set size of this process, from /proc; 0 where there is none."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
