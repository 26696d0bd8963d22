"""A timeline of waves in Chrome's trace event format, which Perfetto reads.

One track per stage with a slice per step, named by its wave; a flow arrow follows each wave from stage to stage. The
router's track has each wave from issued to done: they overlap there, so they are asynchronous slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from wavepp.v1 import prefill_pb2

PROCESS: Final = 1
ROUTER_TRACK: Final = 0


def chrome_trace(
    waves: Iterable[prefill_pb2.WaveRecord], layers: Mapping[int, tuple[int, int]], pipeline: str
) -> dict[str, Any]:
    """The document. `layers`: [first, last) by stage index. Times are microseconds after the first event; when that
    was, in nanoseconds since the Unix epoch, is in `otherData.start_unix_ns`."""
    waves = list(waves)
    starts = [wave.issued_unix_ns for wave in waves] + [s.start_unix_ns for wave in waves for s in wave.steps]
    origin_ns = min(starts, default=0)
    stages = sorted({*layers, *(step.stage for wave in waves for step in wave.steps)})
    events = _tracks(stages, layers, pipeline)
    for wave in waves:
        events += _wave_events(wave, origin_ns)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"pipeline": pipeline, "start_unix_ns": str(origin_ns)},
    }


def stage_track(stage: int) -> int:
    """The thread id of a stage's track; 0 is the router's."""
    return stage + 1


def _tracks(stages: list[int], layers: Mapping[int, tuple[int, int]], pipeline: str) -> list[dict[str, Any]]:
    events = [_metadata("process_name", ROUTER_TRACK, {"name": f"pipeline {pipeline}"})]
    tracks = [(ROUTER_TRACK, "router: issued to done")]
    for stage in stages:
        span = layers.get(stage)
        tracks.append((stage_track(stage), f"stage {stage}" + (f": layers [{span[0]}, {span[1]})" if span else "")))
    for track, name in tracks:
        events.append(_metadata("thread_name", track, {"name": name}))
        events.append(_metadata("thread_sort_index", track, {"sort_index": track}))
    return events


def _metadata(name: str, track: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": PROCESS, "tid": track, "args": args}


def _wave_events(wave: prefill_pb2.WaveRecord, origin_ns: int) -> list[dict[str, Any]]:
    name = f"wave {wave.wave}"
    chunks = [
        f"{chunk.request_id} [{chunk.start}, {chunk.start + chunk.length})" + (" decode" if chunk.decode else "")
        for chunk in wave.chunks
    ]
    facts = {
        "epoch": wave.pipeline_epoch,
        "requests": len(wave.chunks),
        "tokens": sum(chunk.length for chunk in wave.chunks),
        "chunks": chunks,
    }
    # The epoch belongs to a wave's identity: numbers may begin again behind it.
    flow = f"{wave.pipeline_epoch}.{wave.wave}"
    whole = {"cat": "wave", "name": name, "id": flow, "pid": PROCESS, "tid": ROUTER_TRACK}
    events: list[dict[str, Any]] = [
        {**whole, "ph": "b", "ts": _us(wave.issued_unix_ns - origin_ns), "args": facts},
        {**whole, "ph": "e", "ts": _us(wave.done_unix_ns - origin_ns)},
    ]
    steps = sorted(wave.steps, key=lambda step: step.stage)
    for index, step in enumerate(steps):
        start_us = _us(step.start_unix_ns - origin_ns)
        where = {"pid": PROCESS, "tid": stage_track(step.stage), "ts": start_us}
        args = {**facts, "tokens": step.tokens, "queued_us": _us(step.queued_ns)}
        events.append({**where, "ph": "X", "cat": "step", "name": name, "dur": _us(step.duration_ns), "args": args})
        if len(steps) > 1:
            kind = "s" if index == 0 else "f" if index == len(steps) - 1 else "t"
            arrow = {**where, "ph": kind, "cat": "flow", "name": "wave", "id": flow}
            events.append({**arrow, "bp": "e"} if kind == "f" else arrow)
    return events


def _us(ns: int) -> float:
    return round(ns / 1000, 3)
