"""Choosing tokens."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.stage.model.base import Sampling
from wavepp.stage.model.sampling import sample, uniform

Logits = npt.NDArray[np.float32]


def random_logits(seed: int, size: int = 50) -> Logits:
    return np.random.default_rng(seed).normal(0, 2, size).astype(np.float32)


def allowed(logits: Logits, sampling: Sampling) -> set[int]:
    """Naive oracle of top-k, then top-p."""
    scaled = [float(x) / sampling.temperature for x in logits]
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    if sampling.top_k:
        order = order[: sampling.top_k]
    peak = max(scaled)
    weights = [math.exp(scaled[i] - peak) for i in order]
    total, kept, reached = sum(weights), set(), 0.0
    for i, weight in zip(order, weights, strict=True):
        kept.add(i)
        reached += weight
        if reached >= sampling.top_p * total * (1 - 1e-12):
            break
    return kept if sampling.top_p < 1 else set(order)


def test_greedy_takes_the_likeliest_and_the_lower_id_among_equals() -> None:
    logits = np.array([0.5, 2.0, 2.0, -1.0], dtype=np.float32)
    chosen = sample(logits, Sampling(top_logprobs=3))
    assert chosen.token == 1
    assert [token for token, _ in chosen.top] == [1, 2, 0]
    expected = 2.0 - math.log(sum(math.exp(x) for x in (0.5, 2.0, 2.0, -1.0)))
    assert chosen.logprob == pytest.approx(expected)
    assert chosen.top[0][1] == chosen.logprob


def test_the_same_seed_and_position_give_the_same_token_and_others_vary() -> None:
    logits = random_logits(1)
    first = [sample(logits, Sampling(1.0, seed=7, position=p)).token for p in range(64)]
    assert first == [sample(logits, Sampling(1.0, seed=7, position=p)).token for p in range(64)]
    assert first != [sample(logits, Sampling(1.0, seed=8, position=p)).token for p in range(64)]
    assert len(set(first)) > 3


@given(
    st.integers(0, 1000),
    st.floats(0.1, 3.0),
    st.floats(0.05, 1.0),
    st.integers(0, 60),
    st.integers(0, 2**64 - 1),
)
def test_a_token_is_never_outside_top_k_and_top_p(
    logits_seed: int, temperature: float, top_p: float, top_k: int, seed: int
) -> None:
    logits = random_logits(logits_seed)
    for position in range(8):
        sampling = Sampling(temperature, top_p, top_k, seed, position)
        assert sample(logits, sampling).token in allowed(logits, sampling)


def test_tokens_come_as_often_as_their_probability_says() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05])).astype(np.float32)
    drawn = Counter(sample(logits, Sampling(1.0, seed=3, position=p)).token for p in range(4000))
    for token, probability in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert drawn[token] / 4000 == pytest.approx(probability, abs=0.03)
    two = Counter(sample(logits, Sampling(1.0, top_p=0.7, seed=3, position=p)).token for p in range(4000))
    assert set(two) == {0, 1}
    assert two[0] / 4000 == pytest.approx(0.625, abs=0.03)


def test_the_uniform_numbers_are_those_of_every_platform() -> None:
    assert [uniform(0, 0), uniform(1, 5), uniform(2**64 - 1, 1000)] == UNIFORM
    assert all(0 <= uniform(seed, 3) < 1 for seed in range(100))


UNIFORM = [0.6524484863740322, 0.6924455848746632, 0.7678393531578306]


def test_a_very_low_temperature_is_greedy() -> None:
    logits = random_logits(4)
    assert sample(logits, Sampling(1e-6, seed=1)).token == int(np.argmax(logits))


def test_top_logprobs_are_bounded_by_the_vocabulary() -> None:
    assert len(sample(random_logits(5, 4), Sampling(top_logprobs=20)).top) == 4
    assert sample(random_logits(5, 4), Sampling()).top == ()
