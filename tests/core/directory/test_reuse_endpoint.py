"""Agreeing on a reuse endpoint, against brute force."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.directory.hints import ReuseHint
from wavepp.core.directory.reuse_endpoint import Agreement, StageOffer, agree, endpoint_max, explain
from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import StageIndex

A = 64
K = 1024


def dense(stage: int, endpoint: int) -> StageOffer:
    return StageOffer(StageIndex(stage), endpoint)


def recurrent(stage: int, *snapshots: int) -> StageOffer:
    return StageOffer(StageIndex(stage), max(snapshots, default=0), snapshots, recurrent=True)


def test_dense_stages_meet_at_the_lowest_offer() -> None:
    agreement = agree([dense(0, 640), dense(1, 256), dense(2, 320)], A)
    assert agreement == Agreement(256, (StageIndex(0), StageIndex(2)), StageIndex(1))


def test_nobody_steps_down_when_all_offer_the_same() -> None:
    assert agree([dense(0, 640), dense(1, 640)], A) == Agreement(640, (), None)


def test_recurrent_stages_step_down_to_a_common_snapshot() -> None:
    agreement = agree([recurrent(0, 90 * K, 72 * K, 64 * K), recurrent(1, 80 * K, 64 * K)], A)
    assert agreement.endpoint_tokens == 64 * K
    assert agreement.lower == (StageIndex(0), StageIndex(1))


def test_a_dense_stage_serves_the_snapshots_below_its_own_endpoint() -> None:
    agreement = agree([dense(0, 640), recurrent(1, 576, 256)], A)
    assert agreement == Agreement(576, (StageIndex(0),), StageIndex(1))
    agreement = agree([dense(0, 512), recurrent(1, 576, 256)], A)
    assert agreement == Agreement(256, (StageIndex(0), StageIndex(1)), StageIndex(1))


def test_without_a_common_snapshot_nothing_is_reused() -> None:
    agreement = agree([recurrent(0, 128), recurrent(1, 192), dense(2, 192)], A)
    assert (agreement.endpoint_tokens, len(agreement.lower)) == (0, 3)


def test_offers_off_the_alignment_are_rounded_down() -> None:
    assert agree([dense(0, 100)], A) == Agreement(64, (StageIndex(0),), StageIndex(0))
    assert agree([recurrent(0, 100, 64)], A).endpoint_tokens == 64


@pytest.mark.parametrize(
    "offers", [[], [dense(0, 64), dense(0, 64)], [dense(0, -64)], [recurrent(0, 64, -64)]], ids=str
)
def test_senseless_offers_are_refused(offers: list[StageOffer]) -> None:
    with pytest.raises(InvalidInputError):
        agree(offers, A)


@pytest.mark.parametrize(("prompt", "expected"), [(1, 0), (64, 0), (65, 64), (128, 64), (129, 128)])
def test_the_largest_endpoint_leaves_a_token(prompt: int, expected: int) -> None:
    assert endpoint_max(prompt, A) == expected


def test_an_empty_prompt_has_no_endpoint() -> None:
    with pytest.raises(InvalidInputError):
        endpoint_max(0, A)


HINT = ReuseHint(
    endpoint_tokens=512,
    longest_any_tokens=1024,
    longest_all_tokens=640,
    after_snapshots_tokens=512,
    limiting_stage=StageIndex(3),
)


def test_the_explanation_names_the_stage_that_the_hint_named_when_the_leases_held() -> None:
    explained = explain(HINT, Agreement(512, (), None), 2000)
    assert dataclasses.astuple(explained) == (2000, 1024, 640, 512, 512, 3)


def test_the_explanation_names_the_stage_whose_lease_gave_less() -> None:
    explained = explain(HINT, Agreement(128, (StageIndex(0),), StageIndex(1)), 2000)
    assert (explained.endpoint_tokens, explained.limiting_stage) == (128, 1)


def servable(offer: StageOffer, endpoint: int) -> bool:
    if not offer.recurrent:
        return endpoint <= offer.endpoint_tokens
    return endpoint == 0 or endpoint in offer.snapshots


@st.composite
def offers_strategy(draw: st.DrawFn) -> list[StageOffer]:
    offers = []
    for stage in range(draw(st.integers(1, 5))):
        multiples = draw(st.lists(st.integers(0, 8), max_size=6))
        if draw(st.booleans()):
            offers.append(recurrent(stage, *(A * m for m in multiples)))
        else:
            offers.append(dense(stage, A * max(multiples, default=0)))
    return offers


@given(offers_strategy())
def test_the_agreement_is_the_highest_that_all_can_serve(offers: list[StageOffer]) -> None:
    agreement = agree(offers, A)
    best = max(e for e in range(0, 9 * A, A) if all(servable(offer, e) for offer in offers))
    assert agreement.endpoint_tokens == best
    assert set(agreement.lower) == {offer.stage for offer in offers if offer.endpoint_tokens > best}
    assert (agreement.limiting_stage is None) == (not agreement.lower)


@given(offers_strategy())
def test_stages_that_stepped_down_agree_at_once(offers: list[StageOffer]) -> None:
    endpoint = agree(offers, A).endpoint_tokens
    stepped = [
        dataclasses.replace(
            offer, endpoint_tokens=endpoint, snapshots=tuple(s for s in offer.snapshots if s <= endpoint)
        )
        for offer in offers
    ]
    assert agree(stepped, A) == Agreement(endpoint, (), None)


@given(offers_strategy(), st.data())
def test_offering_more_never_lowers_the_agreement(offers: list[StageOffer], data: st.DataObject) -> None:
    before = agree(offers, A).endpoint_tokens
    at = data.draw(st.integers(0, len(offers) - 1))
    offer = offers[at]
    more = A * data.draw(st.integers(0, 8))
    snapshots = (*offer.snapshots, more) if offer.recurrent else ()
    offers[at] = dataclasses.replace(offer, endpoint_tokens=max(offer.endpoint_tokens, more), snapshots=snapshots)
    after = agree(offers, A).endpoint_tokens
    assert after >= before
    assert agree([*offers, dense(9, A * data.draw(st.integers(0, 8)))], A).endpoint_tokens <= after
