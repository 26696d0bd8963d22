"""What the demo expects of its answers. Each check returns what is wrong, in words; nothing when all is well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wavepp.v1 import prefill_pb2

REUSED_MIN: Final = 0.9
"""Share of a warm prompt's tokens that must come from the cache."""

Responses = Sequence[prefill_pb2.PrefillResponse]


def check_counts(round_name: str, responses: Responses) -> list[str]:
    """Every prompt has an answer, and its tokens are either reused or computed."""
    wrong = []
    for number, response in enumerate(responses, 1):
        if not response.token_ids:
            wrong.append(f"{round_name} prompt {number} has no answer")
        if response.cached_tokens + response.computed_tokens < response.prompt_tokens:
            wrong.append(
                f"{round_name} prompt {number}: {response.cached_tokens} cached and {response.computed_tokens} "
                f"computed tokens are less than its {response.prompt_tokens}"
            )
    return wrong


def check_cold(responses: Responses) -> list[str]:
    """With a salt of its own no prompt may reuse anything."""
    return [
        f"cold prompt {number} reused {response.cached_tokens} tokens of another salt"
        for number, response in enumerate(responses, 1)
        if response.cached_tokens
    ]


def check_warm(responses: Responses) -> list[str]:
    """Every prompt reuses nine tenths of its tokens or more."""
    return [
        f"warm prompt {number} reused {response.cached_tokens} of {response.prompt_tokens} tokens, less than "
        f"{REUSED_MIN:.0%}"
        for number, response in enumerate(responses, 1)
        if response.cached_tokens < REUSED_MIN * response.prompt_tokens
    ]


def check_same(cached: Responses, uncached: Responses, tokens_min: int) -> list[str]:
    """Answers with and without reuse: the same tokens, and the same log-probabilities of the first one, bit by bit."""
    wrong = []
    for number, (warm, cold) in enumerate(zip(cached, uncached, strict=True), 1):
        if not warm.cached_tokens or cold.cached_tokens:
            wrong.append(
                f"comparison {number} compares nothing: {warm.cached_tokens} tokens reused in the warm run, "
                f"{cold.cached_tokens} in the uncached one"
            )
        if list(warm.token_ids) != list(cold.token_ids):
            wrong.append(
                f"comparison {number}: the cached answer {list(warm.token_ids)} is not the uncached "
                f"{list(cold.token_ids)}"
            )
        elif len(warm.token_ids) < tokens_min:
            wrong.append(f"comparison {number} has {len(warm.token_ids)} tokens, at least {tokens_min} are compared")
        if _logprobs(warm) != _logprobs(cold):
            wrong.append(f"comparison {number}: the first token's log-probabilities differ")
    return wrong


def _logprobs(response: prefill_pb2.PrefillResponse) -> list[tuple[int, float]]:
    return [(each.token, each.logprob) for each in response.first_token_top]
