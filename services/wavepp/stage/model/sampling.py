"""Choosing a token from logits. Imports no torch. A choice depends on logits, seed and position only."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wavepp.core.waves.types import ChosenToken
from wavepp.stage.model.base import Sampling

_MASK64: Final = (1 << 64) - 1


def sample(logits: npt.NDArray[np.float32], sampling: Sampling) -> ChosenToken:
    """Choose the next token. `logits`: [vocab], finite.

    Greedy takes the lowest id among equals. Otherwise temperature, then top-k, then top-p (the smallest set of the
    likeliest tokens that reaches it), then one uniform number from (seed, position) through the inverse of the
    cumulative distribution.
    """
    wide: npt.NDArray[np.float64] = logits.astype(np.float64)
    shifted = wide - wide.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    token = int(np.argmax(wide)) if sampling.temperature <= 0 else _draw(shifted, sampling)
    return ChosenToken(token, float(logprobs[token]), _top(logprobs, sampling.top_logprobs))


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on its arguments only, on every platform and version."""
    state = _mix(_mix(seed & _MASK64) ^ (position & _MASK64))
    return (state >> 11) / float(1 << 53)


def _mix(x: int) -> int:
    """splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def _draw(shifted: npt.NDArray[np.float64], sampling: Sampling) -> int:
    scaled = shifted / sampling.temperature
    order = _likeliest(scaled, sampling.top_k) if 0 < sampling.top_k < scaled.size else None
    if order is None and sampling.top_p < 1:
        order = np.argsort(-scaled, kind="stable")
    weights = np.exp(scaled if order is None else scaled[order])
    cumulative = np.cumsum(weights)
    kept = cumulative.size
    if sampling.top_p < 1:
        kept = int(np.searchsorted(cumulative, sampling.top_p * cumulative[-1], side="left")) + 1
    target = uniform(sampling.seed, sampling.position) * cumulative[kept - 1]
    index = min(int(np.searchsorted(cumulative[:kept], target, side="right")), kept - 1)
    return index if order is None else int(order[index])


def _likeliest(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[Any]:
    """Indices of the `count` largest, largest first, the lower index first among equals."""
    threshold = np.partition(values, values.size - count)[values.size - count]
    candidates = np.flatnonzero(values >= threshold)
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]


def _top(logprobs: npt.NDArray[np.float64], count: int) -> tuple[tuple[int, float], ...]:
    if count <= 0:
        return ()
    chosen = _likeliest(logprobs, min(count, logprobs.size))
    return tuple((int(i), float(logprobs[i])) for i in chosen)
