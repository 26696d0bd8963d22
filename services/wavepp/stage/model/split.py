"""How the layers of a model are dealt out to stages. Pure.

The pipeline runs at the pace of its slowest stage, so the split minimises the largest stage, and among the splits
that do, it evens out the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from wavepp.stage.model.adapters.base import ModelAdapter, ModelShape
from wavepp.stage.model.errors import ModelError

TYPICAL_PREFIX_TOKENS: Final = 2048
"""Keys that a token sees on average, when nobody says better."""

TYPICAL_COMPUTED_TOKENS: Final = 512
"""Prompt tokens that are computed for every row that goes through the head (which sees last tokens only)."""

_EMBEDDING_WORK_PER_ELEMENT: Final = 8.0
"""A row copy does no arithmetic; this is what moving an element costs in the time of operations (estimate)."""

Span = tuple[int, int]


def layer_costs(
    shape: ModelShape, adapter: ModelAdapter, prefix_tokens: int = TYPICAL_PREFIX_TOKENS
) -> tuple[float, ...]:
    """Operations per token of every layer, for a token that sees `prefix_tokens` keys."""
    work = (adapter.layer_work(shape, layer) for layer in range(shape.layers))
    return tuple(w.per_token + w.per_token_key * prefix_tokens for w in work)


def embedding_cost(shape: ModelShape) -> float:
    """Cost per token of the embedding, in operations."""
    return _EMBEDDING_WORK_PER_ELEMENT * shape.hidden


def head_cost(shape: ModelShape, computed_tokens: int = TYPICAL_COMPUTED_TOKENS) -> float:
    """Cost per token of the head, which runs once every `computed_tokens`, in operations."""
    return 2.0 * shape.hidden * shape.vocab / computed_tokens


def split_model(shape: ModelShape, adapter: ModelAdapter, stages: int) -> tuple[Span, ...]:
    """The balanced split of a model at typical sizes. Raises ModelError when there are too many stages."""
    return split_layers(
        layer_costs(shape, adapter),
        stages,
        first_cost=embedding_cost(shape),
        last_cost=head_cost(shape),
        legal_cuts=adapter.legal_cuts(shape),
    )


def split_layers(
    costs: Sequence[float],
    stages: int,
    *,
    first_cost: float = 0.0,
    last_cost: float = 0.0,
    legal_cuts: frozenset[int] | None = None,
) -> tuple[Span, ...]:
    """Spans [first, last) of the stages, contiguous, covering all layers, at least one layer each.

    first_cost and last_cost come on top of the first and the last stage. legal_cuts: layers before which a cut may
    be (None: all). Raises ModelError when no split exists.
    """
    layers = len(costs)
    cuts = [
        0,
        *sorted(c for c in range(1, layers) if legal_cuts is None or c in legal_cuts),
        layers,
    ]
    if not 1 <= stages <= len(cuts) - 1:
        raise ModelError(f"{stages} stages asked for, but the model can be cut into 1 to {len(cuts) - 1}")
    prefix = [0.0]
    for cost in costs:
        prefix.append(prefix[-1] + cost)

    def span_cost(stage: int, first: int, last: int) -> float:
        extra = (first_cost if stage == 0 else 0.0) + (last_cost if stage == stages - 1 else 0.0)
        return prefix[last] - prefix[first] + extra

    def solve(limit: float | None) -> tuple[float, list[int]]:
        """Without a limit: minimise the largest span. With one: minimise the sum of squares below it."""
        infinity = float("inf")
        best = [0.0 if i == 0 else infinity for i in range(len(cuts))]
        back: list[list[int]] = []
        for stage in range(stages):
            following, choice = [infinity] * len(cuts), [-1] * len(cuts)
            for end in range(1, len(cuts)):
                for begin in range(end):
                    if best[begin] == infinity:
                        continue
                    cost = span_cost(stage, cuts[begin], cuts[end])
                    if limit is None:
                        value = max(best[begin], cost)
                    else:
                        value = best[begin] + cost * cost if cost <= limit else infinity
                    if value < following[end]:
                        following[end], choice[end] = value, begin
            best = following
            back.append(choice)
        path, end = [], len(cuts) - 1
        for choice in reversed(back):
            path.append(end)
            end = choice[end]
        return best[-1], path[::-1]

    smallest, _ = solve(None)
    _, ends = solve(smallest * (1 + 1e-12))
    bounds = [0, *(cuts[end] for end in ends)]
    return tuple(pairwise(bounds))


def explicit_split(counts: Sequence[int], layers: int, legal_cuts: frozenset[int] | None = None) -> tuple[Span, ...]:
    """Spans for a given number of layers per stage. Raises ModelError when they do not cover the model."""
    if any(count < 1 for count in counts) or sum(counts) != layers:
        given = ",".join(str(count) for count in counts)
        raise ModelError(
            f"layer split {given} covers {sum(counts)} layers, the model has {layers}; every stage needs at least one"
        )
    spans, first = [], 0
    for count in counts:
        spans.append((first, first + count))
        first += count
    illegal = [first for first, _ in spans[1:] if legal_cuts is not None and first not in legal_cuts]
    if illegal:
        raise ModelError(f"the model cannot be cut before layer {illegal[0]}")
    return tuple(spans)
