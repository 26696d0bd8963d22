"""One request from arrival to its last token."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.errors import TransitionError
from wavepp.core.ids import PipelineEpoch, RequestId, grant_id
from wavepp.core.keys import Namespace, prefix_keys, root_key
from wavepp.core.router.requests import (
    TRANSITIONS,
    FinishReason,
    NewRequest,
    RequestEvent,
    RequestRecord,
    RequestState,
    Times,
)
from wavepp.core.tokens import encode_tokens
from wavepp.core.waves.types import ChosenToken

NAMESPACE = Namespace("model", "f32", 4, None, "salt")


def record(prompt: int, outputs: int = 1, *, end_tokens: frozenset[int] = frozenset()) -> RequestRecord:
    tokens = encode_tokens(range(prompt))
    keys = prefix_keys(NAMESPACE, tokens)
    new = NewRequest(RequestId("a"), tokens, root_key(NAMESPACE), keys, outputs, end_tokens, 3, None)
    return RequestRecord(new, 9, Times(0.0), tokens=bytearray(tokens), keys=bytearray(keys))


def test_what_is_not_in_the_table_is_refused() -> None:
    for state, event in itertools.product(RequestState, RequestEvent):
        request = record(4)
        request.state = state
        if (state, event) in TRANSITIONS:
            request.apply(event)
            assert request.state is TRANSITIONS[state, event]
        else:
            with pytest.raises(TransitionError):
                request.apply(event)


def test_a_request_can_be_stopped_wherever_it_is_and_nothing_leads_out_of_done() -> None:
    for state in RequestState:
        stoppable = TRANSITIONS.get((state, RequestEvent.STOPPED)) is RequestState.DONE
        assert stoppable == (state is not RequestState.DONE)
    assert not [state for state, _ in TRANSITIONS if state is RequestState.DONE]


@given(st.integers(1, 20), st.lists(st.integers(0, 100), max_size=20))
def test_keys_grow_with_the_tokens_as_if_all_had_been_the_prompt(prompt: int, outputs: list[int]) -> None:
    request = record(prompt, 100)
    for token in outputs:
        request.add_output(ChosenToken(token, 0.0))
        if token % 3 == 0:
            request.extend_keys(4)
    request.extend_keys(4)
    assert bytes(request.keys) == prefix_keys(NAMESPACE, encode_tokens([*range(prompt), *outputs]))
    assert request.length == prompt + len(outputs)


@pytest.mark.parametrize(("prompt", "outputs", "total"), [(3, 1, 3), (4, 1, 4), (5, 2, 6), (8, 5, 12)])
def test_the_last_output_needs_no_cache_entry(prompt: int, outputs: int, total: int) -> None:
    assert record(prompt, outputs).total_tokens == total


def test_a_later_attempt_prefills_what_was_generated_and_needs_no_more_room_than_the_first() -> None:
    request = record(6, 4)
    for token in range(3):
        request.add_output(ChosenToken(token, 0.0))
    request.begin_attempt(grant_id(PipelineEpoch(2), 1), 7.0, alone=False)
    assert request.prefill_tokens == 9 == request.total_tokens
    assert request.prompt_tokens == 6


def test_a_request_ends_at_its_budget_or_at_an_end_token() -> None:
    request = record(4, 2, end_tokens=frozenset((7,)))
    assert request.finish_reason() is None
    request.add_output(ChosenToken(1, 0.0))
    assert request.finish_reason() is None
    request.add_output(ChosenToken(2, 0.0))
    assert request.finish_reason() is FinishReason.LENGTH
    request = record(4, 1, end_tokens=frozenset((7,)))
    request.add_output(ChosenToken(7, 0.0))
    assert request.finish_reason() is FinishReason.STOP


def test_rank_puts_higher_priority_first() -> None:
    assert record(4).rank == (-3, 9)
