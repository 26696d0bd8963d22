"""Numbers from lists of any length, while the rest of the process goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

AT_ONCE: Final = 65_536
"""So many are read in one call, which keeps the interpreter (about 2 ms)."""

TokenArray = np.ndarray[tuple[int], np.dtype[np.uint32]]


def token_array(ids: Sequence[int]) -> TokenArray:
    """The ids, each in [0, 2^32), as an array of shape (len(ids),). Between two parts other threads have a turn."""
    made: TokenArray = np.empty(len(ids), dtype="<u4")
    for at in range(0, len(ids), AT_ONCE):
        made[at : at + AT_ONCE] = ids[at : at + AT_ONCE]
    return made
