"""What a simulated run was like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from wavepp.core.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Finished:
    """One request that got its first token. Times in ms. `work_ms`: its uncached work on the slowest stage.

    `waited_ms`: from its arrival to its grant, where there is something to wait for.
    """

    arrived_ms: float
    done_ms: float
    prompt_tokens: int
    cached_tokens: int
    work_ms: float
    kind: str = ""
    waited_ms: float = 0.0

    @property
    def completion_ms(self) -> float:
        return self.done_ms - self.arrived_ms


@dataclass(frozen=True, slots=True)
class WaveSpan:
    """One step: a wave on a stage. `grant`: that of its first chunk."""

    wave: int
    stage: int
    start_ms: float
    end_ms: float
    tokens: int
    grant: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Of the measured window. `utilisation`: uncached work done / (window x slowest stage)."""

    utilisation: float
    input_tokens_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    waves_per_request: float
    requests: int


@dataclass(slots=True)
class Log:
    """Everything that ended, in order, and what was launched."""

    finished: list[Finished] = field(default_factory=list)
    waves: int = 0
    spans: list[WaveSpan] | None = None

    def summary(self, skip: int, start_ms: float = 0.0) -> Summary:
        """Of the requests that ended after the first `skip`; the window is from the end of these to that of the last.
        With none to skip it begins at `start_ms`. Raises InvalidInputError when nothing is left.
        """
        start = self.finished[skip - 1].done_ms if skip else start_ms
        # Who ended in the same wave as the last that is skipped did its work before the window.
        measured = [one for one in self.finished[skip:] if one.done_ms > start]
        if not measured:
            raise InvalidInputError(
                f"{len(self.finished)} requests ended, {skip} of them do not count: nothing is left"
            )
        window_ms = measured[-1].done_ms - start
        completions = sorted(one.completion_ms for one in measured)
        return Summary(
            utilisation=sum(one.work_ms for one in measured) / window_ms,
            input_tokens_s=1e3 * sum(one.prompt_tokens for one in measured) / window_ms,
            p50_ms=quantile(completions, 0.5),
            p95_ms=quantile(completions, 0.95),
            p99_ms=quantile(completions, 0.99),
            waves_per_request=self.waves / max(1, len(self.finished)),
            requests=len(measured),
        )


def quantile(ascending: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    return ascending[max(0, math.ceil(len(ascending) * share) - 1)]
