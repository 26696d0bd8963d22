"""What the clients of a simulation ask for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from wavepp.core.errors import InvalidInputError

JITTER: Final = 0.05
"""Prompt lengths vary by so much, evenly, up and down."""

_BLOCK: Final = 64


@dataclass(frozen=True, slots=True)
class Ask:
    """A request of `prompt_tokens`, of which the first `cached_tokens` are in every stage's cache."""

    prompt_tokens: int
    cached_tokens: int
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """`shares`: how often which (prompt, cached) comes, before jitter; the shares sum to 1."""

    name: str
    shares: tuple[tuple[float, int, int, str], ...]

    def asks(self, seed: int) -> Iterator[Ask]:
        """An endless sequence. Lengths are jittered; what is cached is so in proportion, to a full block."""
        draw = random.Random(seed)
        while True:
            _, prompt, cached, kind = self._pick(draw)
            factor = 1.0 + JITTER * (2.0 * draw.random() - 1.0)
            tokens = max(1, int(prompt * factor))
            yield Ask(tokens, min(int(cached * factor), tokens - 1) // _BLOCK * _BLOCK, kind)

    def _pick(self, draw: random.Random) -> tuple[float, int, int, str]:
        if len(self.shares) == 1:
            return self.shares[0]
        point = draw.random()
        for entry in self.shares:
            point -= entry[0]
            if point < 0.0:
                return entry
        return self.shares[-1]

    def mean(self, value: Callable[[int, int], float]) -> float:
        """The mean of a function of (prompt, cached), without jitter."""
        return sum(share * value(prompt, cached) for share, prompt, cached, _ in self.shares)


def cold(prompt: int) -> Workload:
    """Nothing is cached."""
    return Workload(f"cold {_thousands(prompt)}", ((1.0, prompt, 0, "cold"),))


def reuse(prompt: int, share: float = 0.9) -> Workload:
    """The first `share` of every prompt is cached."""
    return Workload(f"reuse {_thousands(prompt)}", ((1.0, prompt, int(prompt * share), "warm"),))


def short_suffix(prefix: int, suffix: int = 4096) -> Workload:
    """`suffix` new tokens after a cached prefix."""
    name = f"{_thousands(suffix)} on {_thousands(prefix)}"
    return Workload(name, ((1.0, prefix + suffix, prefix, "warm"),))


def mixed(prompt: int, warm: float = 0.75, share: float = 0.9) -> Workload:
    """`warm` of the requests have `share` of their prompt cached, the others nothing."""
    shares = ((warm, prompt, int(prompt * share), "warm"), (1.0 - warm, prompt, 0, "cold"))
    return Workload(f"mixed {_thousands(prompt)}", shares)


def _thousands(tokens: int) -> str:
    return f"{tokens / 1024:.0f}K" if tokens >= 1024 else str(tokens)


_K: Final = 1024
WORKLOADS: Final = (
    cold(64 * _K),
    cold(128 * _K),
    cold(256 * _K),
    reuse(64 * _K),
    reuse(128 * _K),
    reuse(256 * _K),
    short_suffix(36 * _K),
    short_suffix(128 * _K),
    mixed(64 * _K),
    mixed(128 * _K),
    mixed(256 * _K),
)


def workload_by_name(name: str) -> Workload:
    """One of `WORKLOADS`. Raises InvalidInputError."""
    for workload in WORKLOADS:
        if workload.name == name:
            return workload
    raise InvalidInputError(f"no workload {name!r}; there are: {', '.join(one.name for one in WORKLOADS)}")
