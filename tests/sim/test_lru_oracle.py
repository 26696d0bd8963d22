"""The oracle against one that is too simple to be wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.errors import InvalidInputError
from wavepp.core.limits import KEY_BYTES
from wavepp.sim.keyed import chain_keys
from wavepp.sim.lru_oracle import LruOracle, reusable_blocks

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=0, max_size=6), max_size=25)


def brute_force(prompts: list[list[int]], capacity: int) -> list[int]:
    """Every prefix that was ever asked for with the time of its last use; the newest `capacity` are held.

    Time goes from the last block of a request to the first, so a prefix is never older than what goes on from it.
    """
    used: dict[tuple[int, ...], int] = {}
    now = 0
    reused = []
    for prompt in prompts:
        held = set(sorted(used, key=used.__getitem__)[-capacity:])
        prefixes = [tuple(prompt[: n + 1]) for n in range(len(prompt))]
        reused.append(next((n for n, prefix in enumerate(prefixes) if prefix not in held), len(prefixes)))
        for prefix in reversed(prefixes):
            now += 1
            used[prefix] = now
    return reused


@given(PROMPTS, st.integers(1, 12))
def test_the_oracle_is_exact_lru(prompts: list[list[int]], capacity: int) -> None:
    oracle = LruOracle(capacity)
    assert [oracle.ask(chain_keys(p), len(p)) for p in prompts] == brute_force(prompts, capacity)


def test_one_token_is_always_computed() -> None:
    oracle = LruOracle(10)
    keys = chain_keys([1, 2])
    assert len(keys) == 2 * KEY_BYTES
    assert oracle.ask(keys, reusable_blocks(1_024, 512)) == 0
    assert oracle.ask(keys, reusable_blocks(1_024, 512)) == 1
    assert oracle.ask(keys, reusable_blocks(1_025, 512)) == 2


def test_a_cache_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        LruOracle(0)
