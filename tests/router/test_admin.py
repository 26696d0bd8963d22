"""What operators ask for costs the waves nothing."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wavepp.core.ids import PipelineEpoch, WaveId
from wavepp.router import timeline as timeline_module
from wavepp.router.admin import AdminServicer
from wavepp.router.leadership import Leadership
from wavepp.router.relay import Relay
from wavepp.router.timeline import Timeline
from wavepp.v1 import prefill_pb2


@pytest.mark.parametrize(("waves_max", "expected"), [(0, [1, 2, 3]), (2, [2, 3]), (9, [1, 2, 3])])
async def test_a_timeline_is_put_together_off_the_event_loop(
    waves_max: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline, threads, record = Timeline(10), set[threading.Thread](), timeline_module._record
    for wave in (WaveId(1), WaveId(2), WaveId(3)):
        timeline.issued(wave, PipelineEpoch(1), (), 5)
        timeline.done(wave, (), 6)

    def watched(entry: Any) -> prefill_pb2.WaveRecord:
        threads.add(threading.current_thread())
        return record(entry)

    monkeypatch.setattr(timeline_module, "_record", watched)
    leadership = SimpleNamespace(leader=None, driver=SimpleNamespace(timeline=timeline))
    admin = AdminServicer(cast(Leadership, leadership), cast(Relay, None))
    found = await admin.GetTimeline(prefill_pb2.GetTimelineRequest(waves_max=waves_max), cast(Any, None))
    assert [wave.wave for wave in found.waves] == expected
    assert threads
    assert threading.current_thread() not in threads
