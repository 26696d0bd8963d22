"""The timeline file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wavepp.cli.mesh.chrome_trace import chrome_trace
from wavepp.cli.mesh.trace import write_timeline
from wavepp.core.errors import WaveppError
from wavepp.v1 import prefill_pb2, types_pb2

ORIGIN = 1_700_000_000_000_000_000


def wave(number: int, issued_us: int, stages: int = 2) -> prefill_pb2.WaveRecord:
    return prefill_pb2.WaveRecord(
        wave=number,
        pipeline_epoch=3,
        issued_unix_ns=ORIGIN + issued_us * 1000,
        done_unix_ns=ORIGIN + (issued_us + 1000 * stages) * 1000,
        steps=[
            types_pb2.StepTime(
                stage=stage,
                start_unix_ns=ORIGIN + (issued_us + 100 + 1000 * stage) * 1000,
                duration_ns=800_500,
                queued_ns=50_000,
                tokens=65,
            )
            for stage in range(stages)
        ],
        chunks=[
            prefill_pb2.WaveChunkRecord(request_id="a", start=64, length=64),
            prefill_pb2.WaveChunkRecord(request_id="b", start=99, length=1, decode=True),
        ],
    )


def test_a_wave_becomes_a_slice_per_stage_with_arrows_and_one_on_the_routers_track() -> None:
    document = chrome_trace([wave(7, 0)], {0: (0, 15), 1: (15, 30)}, "p0")
    facts = {"epoch": 3, "requests": 2, "tokens": 65, "chunks": ["a [64, 128)", "b [99, 100) decode"]}
    whole = {"cat": "wave", "name": "wave 7", "id": "3.7", "pid": 1, "tid": 0}
    step = {"ph": "X", "cat": "step", "name": "wave 7", "pid": 1, "dur": 800.5, "args": {**facts, "queued_us": 50.0}}
    arrow = {"cat": "flow", "name": "wave", "id": "3.7", "pid": 1}
    assert document == {
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "pipeline p0"}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 0, "args": {"name": "router: issued to done"}},
            {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 0, "args": {"sort_index": 0}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "stage 0: layers [0, 15)"}},
            {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 1, "args": {"sort_index": 1}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "stage 1: layers [15, 30)"}},
            {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 2, "args": {"sort_index": 2}},
            {**whole, "ph": "b", "ts": 0.0, "args": facts},
            {**whole, "ph": "e", "ts": 2000.0},
            {**step, "tid": 1, "ts": 100.0},
            {**arrow, "ph": "s", "tid": 1, "ts": 100.0},
            {**step, "tid": 2, "ts": 1100.0},
            {**arrow, "ph": "f", "bp": "e", "tid": 2, "ts": 1100.0},
        ],
        "displayTimeUnit": "ms",
        "otherData": {"pipeline": "p0", "start_unix_ns": str(ORIGIN)},
    }


def test_arrows_pass_through_the_stages_in_between_and_one_stage_has_none() -> None:
    phases = [e["ph"] for e in chrome_trace([wave(1, 0, stages=4)], {}, "p")["traceEvents"] if e.get("cat") == "flow"]
    assert phases == ["s", "t", "t", "f"]
    events = chrome_trace([wave(1, 0, stages=1)], {}, "p")["traceEvents"]
    assert not [e for e in events if e.get("cat") == "flow"]


def test_every_stage_has_its_track_and_times_count_from_the_first_event() -> None:
    events = chrome_trace([wave(1, 500), wave(2, 1500)], {0: (0, 1), 1: (1, 2)}, "p")["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert [(e["tid"], e["ts"]) for e in slices] == [(1, 100.0), (2, 1100.0), (1, 1100.0), (2, 2100.0)]


def test_the_file_is_json_and_an_empty_timeline_too(tmp_path: Path) -> None:
    status = prefill_pb2.GetStatusResponse(pipeline="p0", stages=[prefill_pb2.StageStatus(stage=0, last_layer=4)])
    out = tmp_path / "new" / "t.json"
    assert write_timeline(prefill_pb2.GetTimelineResponse(), status, out) == 0
    document = json.loads(out.read_text())
    assert [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"] == [
        "router: issued to done",
        "stage 0: layers [0, 4)",
    ]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(WaveppError, match="cannot write"):
        write_timeline(prefill_pb2.GetTimelineResponse(), prefill_pb2.GetStatusResponse(), tmp_path)
