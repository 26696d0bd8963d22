"""The life of a grant on a stage."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.errors import TransitionError
from wavepp.core.ids import GrantId
from wavepp.core.limits import KEY_BYTES
from wavepp.core.stage.grants import TRANSITIONS, GrantAction, GrantEvent, GrantState, GrantTable, StageGrant


def record(number: int = 1, *, keys_first_block: int = 0, keys: bytes = b"") -> StageGrant:
    return StageGrant(GrantId(number), 8, 8, 0, (), keys_first_block, keys, None)


def test_every_event_is_foreseen_in_every_state() -> None:
    assert set(TRANSITIONS) == set(itertools.product(GrantState, GrantEvent))


def test_nothing_leads_out_of_ended_and_everything_is_released_once() -> None:
    for (state, event), (to, action) in TRANSITIONS.items():
        assert (action is GrantAction.RELEASE) == (to is GrantState.ENDED and state is not GrantState.ENDED), event
        if state is GrantState.ENDED:
            assert to is GrantState.ENDED


def test_a_grant_that_has_been_in_a_wave_ends_only_in_wave_order_or_by_an_epoch() -> None:
    ends = {e for (s, e), (to, _) in TRANSITIONS.items() if s is GrantState.RUNNING and to is GrantState.ENDED}
    assert ends == {GrantEvent.END, GrantEvent.FENCE}


def test_an_unforeseen_event_tells_the_grants_story(monkeypatch: pytest.MonkeyPatch) -> None:
    grant = record()
    grant.apply(GrantEvent.CHUNK)
    monkeypatch.delitem(TRANSITIONS, (GrantState.RUNNING, GrantEvent.END))
    with pytest.raises(TransitionError, match="prepared:chunk"):
        grant.apply(GrantEvent.END)


def test_an_id_is_never_used_twice() -> None:
    table = GrantTable()
    table.add(record())
    with pytest.raises(TransitionError):
        table.add(record())
    table.bury(GrantId(1))
    assert table.ended(GrantId(1))
    assert table.get(GrantId(1)) is None
    with pytest.raises(TransitionError):
        table.add(record())


def test_tombstones_are_bounded_and_the_oldest_go_first() -> None:
    table = GrantTable(tombstones_max=3)
    for number in range(5):
        table.bury(GrantId(number))
        table.bury(GrantId(number))
    assert [table.ended(GrantId(n)) for n in range(5)] == [False, False, True, True, True]


@given(st.integers(0, 6), st.integers(0, 6), st.data())
def test_keys_of_a_range_are_the_prompts_and_then_the_later_ones(first: int, count: int, data: st.DataObject) -> None:
    every = [bytes([i]) * KEY_BYTES for i in range(20)]
    prompt_end = first + count
    grant = record(keys_first_block=first, keys=b"".join(every[first:prompt_end]))
    start = data.draw(st.integers(first, 12))
    end = data.draw(st.integers(start, 14))
    later = every[max(start, prompt_end) : max(end, prompt_end)]
    assert grant.keys_between(start, end, b"".join(later)) == b"".join(every[start:end])
