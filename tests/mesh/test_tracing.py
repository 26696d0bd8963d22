"""One trace per request, below the caller's span, with every step of it and nothing of anybody else's."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mesh_support import VOCAB, MeshClient, eventually

CALLERS = 20
PROMPT_TOKENS = 1300
STAGES = 2

Span = dict[str, Any]


async def spans_of(trace_file: Path, traces: set[str], count: int) -> dict[str, list[Span]]:
    """The spans of these traces, once there are `count` request spans among them."""

    async def look() -> list[Span]:
        return [span for span in written(trace_file) if trace_of(span) in traces]

    found = await eventually(look, lambda spans: sum(s["name"] == "prefill" for s in spans) >= count, 10.0)
    return {trace: [s for s in found if trace_of(s) == trace] for trace in traces}


def written(trace_file: Path) -> list[Span]:
    """All spans so far; the last line may be half written."""
    return [json.loads(line) for line in trace_file.read_text().splitlines() if line.endswith("}")]


def trace_of(span: Span) -> str:
    return str(span["context"]["trace_id"]).removeprefix("0x")


def traceparents(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """(trace id, span id) of callers."""
    return [(f"{rng.getrandbits(128):032x}", f"{rng.getrandbits(64):016x}") for _ in range(count)]


def metadata(trace: str, span: str, flags: str = "01") -> tuple[tuple[str, str], ...]:
    return (("traceparent", f"00-{trace}-{span}-{flags}"),)


async def test_twenty_concurrent_requests_give_twenty_separate_trees(client: MeshClient, trace_file: Path) -> None:
    rng = random.Random(7)
    callers = traceparents(rng, CALLERS)
    prompts = [[rng.randrange(VOCAB) for _ in range(PROMPT_TOKENS)] for _ in callers]
    answers = await asyncio.gather(
        *(client.answer(p, 2, metadata=metadata(*c)) for p, c in zip(prompts, callers, strict=True))
    )
    trees = await spans_of(trace_file, {trace for trace, _ in callers}, CALLERS)
    for (trace, caller), answer in zip(callers, answers, strict=True):
        spans = trees[trace]
        (root,) = [s for s in spans if s["name"] == "prefill"]
        assert root["parent_id"] == f"0x{caller}"
        assert root["attributes"]["wavepp.request_id"] == answer.request_id
        assert root["attributes"]["wavepp.computed_tokens"] == answer.computed_tokens == PROMPT_TOKENS
        children = [s for s in spans if s is not root]
        assert {s["parent_id"] for s in children} == {root["context"]["span_id"]}
        names = Counter(s["name"] for s in children)
        assert names == {"queue": 1, "admission": 1, "result": 1, "step": answer.waves * STAGES}
        steps = Counter((s["attributes"]["wavepp.wave"], s["attributes"]["wavepp.stage"]) for s in steps_of(children))
        assert set(steps.values()) == {1}, "each wave once on each stage"
        assert {stage for _, stage in steps} == set(range(STAGES))
        first_stage = [s["attributes"] for s in steps_of(children) if s["attributes"]["wavepp.stage"] == 0]
        prefill = sum(a["wavepp.chunk_tokens"] for a in first_stage if not a["wavepp.decode"])
        assert prefill == PROMPT_TOKENS
        assert all(root["start_time"] <= s["start_time"] <= s["end_time"] <= root["end_time"] for s in children)


def steps_of(spans: list[Span]) -> list[Span]:
    return [s for s in spans if s["name"] == "step"]


@pytest.mark.parametrize("header", [(), (("traceparent", "00-nonsense-01"),)], ids=["none", "malformed"])
async def test_a_request_without_context_gets_a_trace_of_its_own(
    client: MeshClient, trace_file: Path, header: tuple[tuple[str, str], ...]
) -> None:
    (other,) = traceparents(random.Random(8), 1)
    alone, _ = await asyncio.gather(
        client.answer(range(200), metadata=header), client.answer(range(300), metadata=metadata(*other))
    )

    async def look() -> list[Span]:
        return [s for s in written(trace_file) if s["attributes"].get("wavepp.request_id") == alone.request_id]

    (root,) = await eventually(look, bool, 10.0)
    assert root["parent_id"] is None
    assert trace_of(root) != other[0]
    tree = (await spans_of(trace_file, {trace_of(root)}, 1))[trace_of(root)]
    assert {s["name"] for s in tree} == {"prefill", "queue", "admission", "step", "result"}


async def test_requests_that_end_early_end_their_spans_as_failed(client: MeshClient, trace_file: Path) -> None:
    callers = traceparents(random.Random(9), 10)
    calls = [client.prefill(range(2000), max_tokens=400, metadata=metadata(*c)) for c in callers]
    await eventually(client.status, lambda s: s.router.running == len(callers))
    for call in calls:
        call.cancel()
    trees = await spans_of(trace_file, {trace for trace, _ in callers}, len(callers))
    for spans in trees.values():
        (root,) = spans
        assert root["status"]["status_code"] == "ERROR"
    await client.quiet()


async def test_a_caller_that_does_not_sample_is_not_traced(client: MeshClient, trace_file: Path) -> None:
    silent, traced = traceparents(random.Random(10), 2)
    await client.answer(range(100), metadata=metadata(*silent, "00"))
    await client.answer(range(100), metadata=metadata(*traced))
    await spans_of(trace_file, {traced[0]}, 1)
    assert silent[0] not in map(trace_of, written(trace_file))
