"""Answers of prefill requests, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from wavepp.cli.mesh.batch import PromptOutcome
from wavepp.cli.mesh.plain import to_plain
from wavepp.v1 import prefill_pb2

Named = tuple[str, PromptOutcome]


def answers_table(named: Sequence[Named], title: str | None = None) -> Table:
    """A row per prompt: token counts, time to first token, input tokens per second until then, and the answer."""
    table = Table(title=title, title_justify="left")
    table.add_column("prompt", max_width=36, overflow="ellipsis", no_wrap=True)
    for heading in ("tokens", "cached", "computed", "first token", "input tok/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("answer", overflow="fold", ratio=1)
    for name, outcome in named:
        if outcome.answer is None:
            table.add_row(name, "", "", "", "", "", str(outcome.error))
            continue
        response, first_s = outcome.answer.response, outcome.answer.first_token_s
        table.add_row(
            name,
            f"{response.prompt_tokens:,}",
            f"{response.cached_tokens:,}",
            f"{response.computed_tokens:,}",
            f"{first_s * 1000:,.0f} ms",
            f"{response.prompt_tokens / first_s:,.0f}" if first_s > 0 else "",
            words_of(response),
        )
    return table


def words_of(response: prefill_pb2.PrefillResponse) -> str:
    """The answer on one line: its text, or its token ids when there is no tokenizer."""
    text = " ".join(response.text.split())
    if text:
        return text
    shown = ",".join(str(token) for token in response.token_ids[:16])
    return f"tokens {shown}" + (",..." if len(response.token_ids) > 16 else "")


def explanation(response: prefill_pb2.PrefillResponse) -> str:
    """Where reuse was lost, where time went."""
    reuse, timing = response.reuse, response.timing
    limit = f" (limited by stage {reuse.limiting_stage})" if reuse.HasField("limiting_stage") else ""
    attempts = f"{response.attempts} attempt" + ("s" if response.attempts != 1 else "")
    where_reuse_went = (
        f"reuse: longest prefix on any stage {reuse.longest_any_tokens}, on all {reuse.longest_all_tokens}, after "
        f"snapshots {reuse.after_snapshots_tokens}, agreed {reuse.endpoint_tokens} of {response.prompt_tokens}{limit}"
    )
    where_time_went = (
        f"time: queue {timing.queue_ms:.1f} ms, admission {timing.admission_ms:.1f} ms, prefill "
        f"{timing.prefill_ms:.1f} ms, total {timing.total_ms:.1f} ms; {response.waves} waves, {attempts}, finished by "
        f"{response.finish_reason}"
    )
    parts = [where_reuse_went, where_time_went]
    if reuse.waits:
        parts.append(
            f"waited {reuse.waits} times for room, last for {reuse.waited_for_pool or 'room'}"
            + (f" on stage {reuse.waited_for_stage}" if reuse.HasField("waited_for_stage") else "")
        )
    if response.first_token_top:
        likeliest = ", ".join(f"{each.token}: {each.logprob:.3f}" for each in response.first_token_top)
        parts.append(f"first token's likeliest (token: logprob): {likeliest}")
    return "; ".join(parts)


def answers_json(named: Sequence[Named]) -> dict[str, Any]:
    """`results`: in the order of the prompts, each with `answer` or `error` and the other one null."""
    return {"results": [_result(name, outcome) for name, outcome in named]}


def _result(name: str, outcome: PromptOutcome) -> dict[str, Any]:
    answer, error = outcome.answer, outcome.error
    return {
        "prompt": name,
        "answer": to_plain(answer.response) if answer else None,
        "client_first_token_ms": round(answer.first_token_s * 1000, 3) if answer else None,
        "client_total_ms": round(answer.total_s * 1000, 3) if answer else None,
        "error": None
        if error is None
        else {"code": error.code, "message": error.details, "retry_after_ms": error.retry_after_ms},
    }
