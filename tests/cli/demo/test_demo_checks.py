"""The demo's own checks find what is wrong, and nothing else."""

from __future__ import annotations

import pytest

from wavepp.cli.demo.checks import check_cold, check_counts, check_same, check_warm
from wavepp.cli.demo.texts import OTHER_QUESTIONS, QUESTIONS, ask, long_text
from wavepp.v1 import prefill_pb2, types_pb2


def response(
    cached: int = 0, tokens: tuple[int, ...] = tuple(range(8)), logprob: float = -1.5, prompt: int = 1000
) -> prefill_pb2.PrefillResponse:
    return prefill_pb2.PrefillResponse(
        token_ids=tokens,
        prompt_tokens=prompt,
        cached_tokens=cached,
        computed_tokens=prompt - cached,
        first_token_top=[types_pb2.TokenLogprob(token=1, logprob=logprob)],
    )


def test_a_round_is_well_when_each_prompt_has_an_answer_and_all_its_tokens() -> None:
    assert check_counts("warm", [response(), response(960)]) == []


def test_an_answer_or_tokens_that_are_missing_are_found() -> None:
    short = response()
    short.computed_tokens = 999
    assert check_counts("cold", [response(tokens=()), short]) == [
        "cold prompt 1 has no answer",
        "cold prompt 2: 0 cached and 999 computed tokens are less than its 1000",
    ]


def test_reuse_in_the_cold_round_is_found() -> None:
    assert check_cold([response(), response()]) == []
    assert check_cold([response(), response(64)]) == ["cold prompt 2 reused 64 tokens of another salt"]


@pytest.mark.parametrize(("cached", "well"), [(1000, True), (900, True), (899, False), (0, False)])
def test_a_warm_prompt_must_reuse_nine_tenths(cached: int, well: bool) -> None:
    assert (check_warm([response(cached)]) == []) is well


def test_equal_answers_are_equal() -> None:
    assert check_same([response(960)], [response(0)], 8) == []


@pytest.mark.parametrize(
    ("warm", "cold", "complaint"),
    [
        (response(960, tokens=(1, 2, 3, 4, 5, 6, 7, 9)), response(), "is not the uncached"),
        (response(960, tokens=(1, 2)), response(tokens=(1, 2)), "has 2 tokens, at least 8"),
        (response(960, logprob=-1.5000001), response(), "log-probabilities differ"),
        (response(0), response(), "compares nothing"),
        (response(960), response(64), "compares nothing"),
    ],
)
def test_a_difference_or_an_empty_comparison_is_found(
    warm: prefill_pb2.PrefillResponse, cold: prefill_pb2.PrefillResponse, complaint: str
) -> None:
    (found,) = check_same([warm], [cold], 8)
    assert complaint in found


def test_a_missing_answer_is_no_comparison() -> None:
    with pytest.raises(ValueError, match="shorter"):
        check_same([response(960)], [], 8)


@pytest.mark.parametrize("chars", [500, 13_000])
def test_the_text_is_as_long_as_asked_and_in_words(chars: int) -> None:
    text = long_text(chars)
    assert chars - 30 < len(text) <= chars
    assert "assert" in text


def test_prompts_share_all_but_the_question_and_no_question_comes_twice() -> None:
    assert len({*QUESTIONS, *OTHER_QUESTIONS}) == len(QUESTIONS) + len(OTHER_QUESTIONS) == 16
    text = long_text(500)
    for question in QUESTIONS:
        assert ask(text, question).startswith(ask(text, ""))
