"""Tokens and the answer to a client, for the wire."""

from __future__ import annotations

from wavepp.codec.types import encode_reuse
from wavepp.core.router.requests import RequestOutcome
from wavepp.core.waves.types import ChosenToken
from wavepp.v1 import prefill_pb2, types_pb2


def prefill_token(index: int, chosen: ChosenToken, text: str) -> prefill_pb2.PrefillToken:
    """A token as a stream gives it."""
    return prefill_pb2.PrefillToken(
        index=index, token_id=chosen.token, text=text, logprob=chosen.logprob, top=_top(chosen)
    )


def chosen_token(given: prefill_pb2.PrefillToken) -> ChosenToken:
    """The reverse."""
    return ChosenToken(given.token_id, given.logprob, tuple((t.token, t.logprob) for t in given.top))


def _top(chosen: ChosenToken) -> list[types_pb2.TokenLogprob]:
    return [types_pb2.TokenLogprob(token=t, logprob=p) for t, p in chosen.top]


def prefill_response(outcome: RequestOutcome, text: str) -> prefill_pb2.PrefillResponse:
    """The answer to a client."""
    times, first = outcome.times, outcome.tokens[0]
    reuse = encode_reuse(outcome.reuse)
    reuse.waits = outcome.waits
    waited_stage, waited_for = outcome.waited_for
    reuse.waited_for_pool = waited_for or ""
    if waited_stage is not None:
        reuse.waited_for_stage = waited_stage
    return prefill_pb2.PrefillResponse(
        request_id=outcome.request,
        token_ids=[t.token for t in outcome.tokens],
        text=text,
        finish_reason=outcome.finish_reason,
        prompt_tokens=outcome.prompt_tokens,
        cached_tokens=outcome.cached_tokens,
        computed_tokens=outcome.computed_tokens,
        completion_tokens=len(outcome.tokens),
        reuse=reuse,
        timing=prefill_pb2.Timing(
            queue_ms=times.asked - times.arrived,
            admission_ms=times.granted - times.asked,
            prefill_ms=times.first_token - times.granted,
            first_token_ms=times.first_token - times.arrived,
            total_ms=times.done - times.arrived,
        ),
        waves=outcome.waves,
        attempts=outcome.attempts,
        first_token=types_pb2.TokenLogprob(token=first.token, logprob=first.logprob),
        first_token_top=_top(first),
    )
