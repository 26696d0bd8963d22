"""The reuse endpoint: from what every stage offers to what all can serve, and why it is not higher."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from wavepp.core.directory.hints import ReuseHint
from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import StageIndex


@dataclass(frozen=True, slots=True)
class StageOffer:
    """What one stage has pinned and could serve instead.

    A dense stage serves every aligned endpoint up to `endpoint_tokens`, and `snapshots` is empty. A recurrent
    stage serves its `snapshots` (tokens, any order) and 0, nothing in between.
    """

    stage: StageIndex
    endpoint_tokens: int
    snapshots: tuple[int, ...] = ()
    recurrent: bool = False


@dataclass(frozen=True, slots=True)
class Agreement:
    """The endpoint, the stages that have pinned more and must step down, and who caused that.

    `limiting_stage` is the stage that brought the endpoint to its final value; None when all offered the
    same.
    """

    endpoint_tokens: int
    lower: tuple[StageIndex, ...]
    limiting_stage: StageIndex | None


@dataclass(frozen=True, slots=True)
class ReuseExplanation:
    """How much of a prompt is reused, and what was lost at each step. All in tokens; see `ReuseHint`."""

    prompt_tokens: int
    longest_any_tokens: int
    longest_all_tokens: int
    after_snapshots_tokens: int
    endpoint_tokens: int
    limiting_stage: StageIndex | None


def endpoint_max(prompt_tokens: int, alignment: int) -> int:
    """The largest endpoint of a prompt: a multiple of `alignment` that leaves a token or more to compute."""
    if prompt_tokens < 1 or alignment < 1:
        raise InvalidInputError(f"prompt of {prompt_tokens} tokens, alignment {alignment}; both must be positive")
    return (prompt_tokens - 1) // alignment * alignment


def agree(offers: Sequence[StageOffer], alignment_tokens: int) -> Agreement:
    """The highest endpoint that every stage can serve; 0 is always possible.

    Start at the highest offer and step down to what each stage can serve until nobody needs to step any more.
    Each step goes to the highest endpoint that the stage can serve at or below the present one, so none is
    missed.
    """
    if alignment_tokens < 1:
        raise InvalidInputError(f"alignment is {alignment_tokens}; it must be positive")
    if not offers:
        raise InvalidInputError("no stage made an offer; every stage of the pipeline must")
    if len({offer.stage for offer in offers}) != len(offers):
        raise InvalidInputError(f"stages offered twice: {sorted(offer.stage for offer in offers)}")
    served = [_served_endpoints(offer, alignment_tokens) for offer in offers]
    endpoint = max(offer.endpoint_tokens for offer in offers)
    limiting: StageIndex | None = None
    stepped = True
    while stepped:
        stepped = False
        for offer, endpoints in zip(offers, served, strict=True):
            best = endpoints[bisect_right(endpoints, endpoint) - 1]
            if best < endpoint:
                endpoint, limiting, stepped = best, offer.stage, True
    lower = tuple(offer.stage for offer in offers if offer.endpoint_tokens > endpoint)
    return Agreement(endpoint, lower, limiting)


def explain(hint: ReuseHint, agreement: Agreement, prompt_tokens: int) -> ReuseExplanation:
    """What the user hears: the hint's figures, then what the leases gave.

    The limiting stage is the one that lost most recently: the leases' when they gave less than the hint, else
    the hint's.
    """
    lost_by_lease = agreement.endpoint_tokens < hint.endpoint_tokens
    return ReuseExplanation(
        prompt_tokens=prompt_tokens,
        longest_any_tokens=hint.longest_any_tokens,
        longest_all_tokens=hint.longest_all_tokens,
        after_snapshots_tokens=hint.after_snapshots_tokens,
        endpoint_tokens=agreement.endpoint_tokens,
        limiting_stage=agreement.limiting_stage if lost_by_lease else hint.limiting_stage,
    )


def _served_endpoints(offer: StageOffer, alignment: int) -> Sequence[int]:
    """Ascending, 0 first. A dense stage's are a range, so nothing is built however long the prompt is."""
    if offer.endpoint_tokens < 0 or any(snapshot < 0 for snapshot in offer.snapshots):
        raise InvalidInputError(f"stage {offer.stage} offers a negative endpoint: {offer}")
    if not offer.recurrent:
        return range(0, offer.endpoint_tokens + 1, alignment)
    return sorted({0, *(snapshot for snapshot in offer.snapshots if snapshot % alignment == 0)})
