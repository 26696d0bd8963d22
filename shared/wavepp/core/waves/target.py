"""How much work a wave should be: the size that keeps all stages busy at the least cost of launching.

c requests of work W each, on P stages whose other stages take `others` times as long as the slowest one (P - 1 where
all are equal), in waves of work T with launch cost c0:

    a request touches about W / T waves and leaves after (W / T + others) (T + c0) + others h
    latency limit  l(T) = c W / that time        the requests under way cannot fill the pipeline beyond it
    launch limit   s(T) = T / (T + c0)           what launches leave of the slowest stage's time

A regular schedule's utilisation is at most the smaller of the two (the bound of docs/scheduling.md). Where they meet
there is no slack: any unevenness of the requests then opens bubbles. So the target maximises a soft minimum,
(l^-k + s^-k)^(-1/k), which says how much slack is worth its launches.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from wavepp.core.waves.cost import PipelineCost
from wavepp.core.waves.in_flight_work import Typical

_SOFTNESS_ALIKE: Final = 16.0
"""k for equal requests, one a wave: at l = s it says 0.96, which is what requests that vary by 5 % reach. It grows with
the square root of the requests in a wave, as their mean varies less."""

_SOFTNESS_MIXED: Final = 128.0
"""k where requests differ: the typical request is a cautious choice already."""

_ANYWHERE_WORTH: Final = 0.99
"""Waves that cut equal requests unevenly make some of them later than others, so it must pay."""

_STAY_UNTIL: Final = 1.015
"""A size is kept until another promises so much more."""

_FITS: Final = 1.03
"""So much more than M may be wanted of equal requests: whole ones that nearly fill M beat M cut from them."""

_SIZES_MAX: Final = 24
_STEP: Final = 1.06
_MEMORY_MAX: Final = 2048


class Cutting(Enum):
    """How requests are dealt out to waves of a size: in equal parts or not at all; at T, wherever that falls; or, where
    requests differ much, at T for the first of a wave, with what fits whole behind it.
    """

    EQUAL_PARTS = auto()
    ANYWHERE = auto()
    MIXED = auto()


@dataclass(frozen=True, slots=True)
class WaveSize:
    """`work_ms`: T."""

    work_ms: float
    cutting: Cutting


@dataclass(frozen=True, slots=True)
class _Share:
    """T in units of the typical work W. `parts`: the most waves that a request of W touches."""

    of_work: float
    parts: float
    cutting: Cutting


def _equal_shares() -> tuple[_Share, ...]:
    """m requests a wave, one request in n waves, and a few regular patterns in between, largest first.

    For T / W = p / q (lowest terms) requests start at multiples of 1 / p in a wave, so the unluckiest touches
    ceil((q + p - 1) / p) waves.
    """
    ratios = [(m, 1) for m in range(1, _SIZES_MAX + 1)] + [(1, n) for n in range(2, 2 * _SIZES_MAX)]
    ratios += [(7, 2), (5, 2), (3, 2), (3, 4), (2, 3)]
    n = 2.0 * _SIZES_MAX
    shares = [_Share(p / q, math.ceil((q + p - 1) / p), _cutting(p, q)) for p, q in ratios]
    while n < 1000.0:
        shares.append(_Share(1.0 / round(n), round(n), Cutting.EQUAL_PARTS))
        n *= _STEP
    return tuple(sorted(shares, key=lambda share: -share.of_work))


def _cutting(p: int, q: int) -> Cutting:
    return Cutting.ANYWHERE if p > 1 and q > 1 else Cutting.EQUAL_PARTS


def _mixed_shares() -> tuple[_Share, ...]:
    count = math.ceil(math.log(1000.0 * _SIZES_MAX) / math.log(_STEP))
    values = [_SIZES_MAX / _STEP**i for i in range(count)]
    return tuple(_Share(value, max(1.0, 1.0 / value), Cutting.MIXED) for value in values)


_EQUAL: Final = _equal_shares()
_MIXED: Final = _mixed_shares()


def _most(typical: Typical, largest: float) -> float:
    """The largest share that may be wanted where M is the share `largest`."""
    return _FITS * largest if typical.alike else largest


class WaveTarget:
    """Chooses T, and stays with its choice while that is about as good as any."""

    def __init__(self, hop_ms: float) -> None:
        """`hop_ms`: from one stage's end to the next one's start."""
        self._hop_ms = hop_ms
        self._best: OrderedDict[tuple[int, int, int, int, bool], tuple[_Share, float]] = OrderedDict()
        self._kept: _Share | None = None
        self._kept_alike = True

    def size(self, typical: Typical, cost: PipelineCost, work_max_ms: float) -> WaveSize:
        """`work_max_ms`: what a wave of M tokens costs; no target is above it."""
        # Without a cost of launching the best waves would be endlessly small.
        launch = max(cost.slowest.launch_ms, 1e-3 * work_max_ms)
        largest = work_max_ms / typical.work_ms
        best, promised = self._search(typical, launch, cost.others, largest)
        kept = self._kept
        stays = kept is not None and self._kept_alike == typical.alike and kept.of_work <= _most(typical, largest)
        if kept is None or not stays or self._worth(kept, typical, launch, cost.others) * _STAY_UNTIL < promised:
            kept = best
        self._kept, self._kept_alike = kept, typical.alike
        # What was remembered is right to within a few percent, which the limit is not.
        return WaveSize(min(kept.of_work * typical.work_ms, work_max_ms), kept.cutting)

    def cost_changed(self) -> None:
        """What was worked out for the old cost is void."""
        self._best.clear()

    def _search(self, typical: Typical, launch: float, others: float, largest: float) -> tuple[_Share, float]:
        """The best share and what it promises, remembered by what it depends on, to within a few percent."""
        key = (
            round(25.0 * math.log(typical.requests)),
            round(25.0 * math.log(typical.work_ms / launch)),
            round(12.0 * math.log(largest)),
            round(25.0 * math.log(launch)),
            typical.alike,
        )
        found = self._best.get(key)
        if found is None:
            most = _most(typical, largest)
            shares = [share for share in (_EQUAL if typical.alike else _MIXED) if share.of_work <= most]
            # A wave that M cuts short cuts requests wherever it must.
            cutting = Cutting.ANYWHERE if typical.alike else Cutting.MIXED
            shares.append(_Share(largest, max(1.0, 1.0 / largest) + 1.0, cutting))
            worth = [self._worth(share, typical, launch, others) for share in shares]
            at = max(range(len(shares)), key=worth.__getitem__)
            found = (shares[at], worth[at])
            self._best[key] = found
            if len(self._best) > _MEMORY_MAX:
                self._best.popitem(last=False)
        return found

    def _worth(self, share: _Share, typical: Typical, launch: float, others: float) -> float:
        work = share.of_work * typical.work_ms
        stay = (share.parts + others) * (work + launch) + others * self._hop_ms
        by_latency = typical.requests * typical.work_ms / stay
        by_launches = work / (work + launch)
        softness = _SOFTNESS_MIXED
        if typical.alike:
            softness = _SOFTNESS_ALIKE * math.sqrt(max(1.0, share.of_work))
        low, high = min(by_latency, by_launches), max(by_latency, by_launches)
        worth = low * math.pow(1.0 + math.pow(low / high, softness), -1.0 / softness)
        return worth * _ANYWHERE_WORTH if share.cutting is Cutting.ANYWHERE else worth
