"""The life of an attempt in its round; what the directory does with it is in test_admission.py."""

from __future__ import annotations

import itertools

import pytest

from wavepp.core.directory.attempts import TRANSITIONS, AttemptEvent, AttemptRecord, AttemptState
from wavepp.core.directory.events import Attempt
from wavepp.core.directory.hints import ReuseHint
from wavepp.core.errors import STORY_EVENTS_MAX, InvariantError, TransitionError
from wavepp.core.ids import GrantId, StageIndex
from wavepp.core.stage.events import RefusalReason, Refused

DECIDED = {AttemptState.GRANTED, AttemptState.ENDED}


def record() -> AttemptRecord:
    attempt = Attempt(GrantId(7), 20, 24, b"", None)
    return AttemptRecord(attempt, ReuseHint(0, 0, 0, 0, None), {StageIndex(0)})


def test_what_is_not_in_the_table_is_refused() -> None:
    for state, event in itertools.product(AttemptState, AttemptEvent):
        attempt = record()
        attempt.state = state
        if (state, event) in TRANSITIONS:
            attempt.apply(event)
            assert attempt.state is TRANSITIONS[state, event]
        else:
            with pytest.raises(TransitionError):
                attempt.apply(event)
        assert attempt.decided == (attempt.state in DECIDED)


def test_an_attempt_can_be_given_up_until_it_is_decided_and_then_nothing_happens_to_it() -> None:
    for event in (AttemptEvent.CANCELLED, AttemptEvent.BROKEN):
        assert {state for state, e in TRANSITIONS if e is event} == set(AttemptState) - DECIDED
    assert not DECIDED & {state for state, _ in TRANSITIONS}


def test_only_the_record_of_what_all_stages_prepared_makes_a_grant() -> None:
    assert [pair for pair, to in TRANSITIONS.items() if to is AttemptState.GRANTED] == [
        (AttemptState.READY, AttemptEvent.RECORDED)
    ]


def test_an_impossible_event_tells_the_attempts_story() -> None:
    attempt = record()
    attempt.apply(AttemptEvent.DIFFER)
    with pytest.raises(TransitionError, match="preparing:endpoints differ"):
        attempt.apply(AttemptEvent.RECORDED)


def test_a_long_round_keeps_only_its_last_events() -> None:
    attempt = record()
    for _ in range(100):
        attempt.apply(AttemptEvent.DIFFER)
    with pytest.raises(TransitionError) as impossible:
        attempt.apply(AttemptEvent.RECORDED)
    assert impossible.value.story == ("lowering:endpoints differ",) * STORY_EVENTS_MAX


def test_endpoints_are_compared_only_of_stages_that_prepared() -> None:
    attempt = record()
    attempt.answered(StageIndex(0), Refused(RefusalReason.ORDER), 0, lowered=False)
    with pytest.raises(InvariantError, match="stage 0 refused"):
        attempt.agree((False,), 4)
