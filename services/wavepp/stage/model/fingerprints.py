"""The arithmetic of the emulated model: a running fingerprint of a sequence, and its check. Pure numpy.

    fp[-1] = 0        fp[i] = fp[i-1] + (token[i] + 1) * w(i)   modulo 2^64,  w(i) = splitmix64(i) | 1

w is odd, hence invertible: from two neighbours the token between them can be recovered. A block of another prompt,
another position or another time then shows as an impossible token at its edge.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def weights(start: int, stop: int) -> U64:
    """w(i) for positions [start, stop): [stop - start], odd."""
    x = np.arange(start, stop, dtype=np.uint64) + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return (x ^ (x >> np.uint64(31))) | np.uint64(1)


def extend(previous: np.uint64, tokens: npt.NDArray[np.uint32], start: int) -> U64:
    """Fingerprints of positions [start, start + len(tokens)), after `previous` at start - 1."""
    steps = (tokens.astype(np.uint64) + np.uint64(1)) * weights(start, start + tokens.size)
    return np.cumsum(steps, dtype=np.uint64) + previous


def consistent(fingerprints: U64, vocab: int) -> bool:
    """Whether `fingerprints`, of positions [0, n), can have come from one sequence of tokens below `vocab`."""
    tokens_plus_one = _tokens_plus_one(np.diff(fingerprints, prepend=np.uint64(0)), 0)
    return bool(((tokens_plus_one >= 1) & (tokens_plus_one <= vocab)).all())


def tokens_between(before: U64, after: U64, start: int) -> U64:
    """The token of each position from `start` on, from the fingerprints before and after it."""
    return _tokens_plus_one(after - before, start) - np.uint64(1)


def _tokens_plus_one(steps: U64, start: int) -> U64:
    return steps * _inverse(weights(start, start + steps.size))


def _inverse(odd: U64) -> U64:
    """Inverse modulo 2^64 by Newton's iteration: 3 right bits to begin with, twice as many each time."""
    x = odd.copy()
    for _ in range(5):
        x = x * (np.uint64(2) - odd * x)
    return x
