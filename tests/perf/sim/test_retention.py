"""Documents that are asked for again and again."""

from __future__ import annotations

import pytest
from perf.sim.retention import Retention, poisson, retain, retain_all

from timed_support import BLOCK, setup
from wavepp.core.errors import InvalidInputError
from wavepp.core.limits import KEY_BYTES
from wavepp.sim.clock import VirtualClock

LOAD = Retention(documents=8, prefix_tokens=16 * BLOCK, question_tokens=2 * BLOCK, skew=1.0)


def test_prompts_of_one_document_share_its_prefix_and_nothing_else() -> None:
    asks = LOAD.asks(60, BLOCK, seed=1)
    assert asks == LOAD.asks(60, BLOCK, seed=1)
    prefixes: dict[str, set[bytes]] = {}
    for one in asks:
        prefixes.setdefault(one.kind, set()).add(one.keys[: 16 * KEY_BYTES])
    assert all(len(keys) == 1 for keys in prefixes.values())
    assert len({key for keys in prefixes.values() for key in keys}) == len(prefixes)
    assert len({one.keys[16 * KEY_BYTES :] for one in asks}) == 60
    counts = {kind: sum(one.kind == kind for one in asks) for kind in prefixes}
    assert counts["document 0"] == max(counts.values())


def test_with_room_for_all_and_time_between_every_repeat_is_a_good_hit() -> None:
    result = retain(LOAD, setup(stages=4), rate_s=0.02, count=40, seed=2)
    assert 0 < result.again < 40
    assert result.rate == result.oracle_rate == 1.0


def test_with_room_for_a_part_the_oracle_limits_what_is_kept() -> None:
    result = retain(LOAD, setup(stages=4, pool_tokens=LOAD.tokens * 6 // 10), rate_s=0.5, count=120, seed=3)
    assert 0.3 < result.oracle_rate < 1.0
    assert 0.8 * result.oracle_rate <= result.rate <= 1.0
    assert result.replay.failed == 0


def test_a_load_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        Retention(documents=0).asks(1, BLOCK, seed=1)


def test_runs_in_processes_are_the_runs_alone_by_rate_setup_and_seed() -> None:
    setups = [setup(stages=2, pool_tokens=LOAD.tokens), setup(stages=4, pool_tokens=LOAD.tokens // 2)]
    seen: list[tuple[int, int]] = []
    points = retain_all(LOAD, setups, [0.05, 0.5], 30, 3, 2, lambda done, of: seen.append((done, of)))
    assert seen == [(done, 12) for done in range(1, 13)]
    assert [(one.rate_s, one.setup) for one in points] == [(rate, one) for rate in (0.05, 0.5) for one in setups]
    for one in points:
        alone = [retain(LOAD, one.setup, one.rate_s, 30, seed) for seed in range(3)]
        assert list(one.runs.results) == alone
        rates = [each.rate for each in alone]
        assert one.runs.mean(lambda each: each.rate) == pytest.approx(sum(rates) / 3)
        assert one.runs.spread(lambda each: each.rate) == max(rates) - min(rates)


# ---- arrivals ----


def ranks(values: list[float]) -> list[int]:
    order = sorted(range(len(values)), key=values.__getitem__)
    return [order.index(at) for at in range(len(values))]


def test_when_somebody_asks_says_nothing_about_what_is_asked_for() -> None:
    count, clock, times = 300, VirtualClock(), list[float]()
    asks = Retention(64, 4096, 512, 1.0).asks(count, 512, 1)
    poisson(clock, asks, 1.0, count, lambda ask: times.append(clock.now_ms), 1)
    clock.run(lambda: False)
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    documents = [float("".join(filter(str.isdigit, ask.kind))) for ask in asks]
    left, right = ranks(gaps), ranks(documents)
    mean = (count - 1) / 2
    covariance = sum((a - mean) * (b - mean) for a, b in zip(left, right, strict=True))
    assert abs(covariance / sum((a - mean) ** 2 for a in left)) < 0.2


def test_arrivals_begin_when_they_are_told_to() -> None:
    clock, times = VirtualClock(), list[float]()
    poisson(clock, range(5), 1e5, 5, lambda ask: times.append(clock.now_ms), 1, start_ms=50.0)
    clock.run(lambda: False)
    assert min(times) >= 50.0


def test_poisson_clients_come_at_the_rate_and_the_same_with_the_same_seed() -> None:
    def arrivals(seed: int) -> list[float]:
        clock, asked = VirtualClock(), list[float]()
        poisson(clock, iter(range(5000)), 20.0, 2000, lambda ask: asked.append(clock.now_ms), seed)
        clock.run(lambda: False)
        return asked

    first = arrivals(1)
    assert first == arrivals(1) != arrivals(2)
    assert len(first) == 2000
    assert first[-1] / 2000 == pytest.approx(50.0, rel=0.1)
