"""The last waves, with their steps on every stage: for `wavepp trace`, and for the spans of traced requests."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from wavepp.codec.types import encode_step
from wavepp.core.ids import PipelineEpoch, RequestId, WaveId
from wavepp.core.router.events import IssuedChunk
from wavepp.core.waves.types import StepTime
from wavepp.v1 import prefill_pb2


@dataclass(slots=True)
class WaveEntry:
    """One wave. Times are wall clock in nanoseconds; `done_ns` is 0 while it is in flight."""

    wave: WaveId
    epoch: PipelineEpoch
    issued_ns: int
    chunks: tuple[tuple[RequestId, int, int, bool], ...]
    done_ns: int = 0
    steps: tuple[StepTime, ...] = ()


class Timeline:
    """A ring of finished waves, and those in flight (as many as the ring of the pipeline allows)."""

    def __init__(self, waves_max: int) -> None:
        self._done: deque[WaveEntry] = deque(maxlen=waves_max)
        self._in_flight: dict[WaveId, WaveEntry] = {}

    def issued(self, wave: WaveId, epoch: PipelineEpoch, chunks: tuple[IssuedChunk, ...], now_ns: int) -> None:
        """A wave went to stage 0."""
        chunk_records = tuple((c.request, c.chunk.start, c.chunk.length, c.chunk.decode) for c in chunks)
        self._in_flight[wave] = WaveEntry(wave, epoch, now_ns, chunk_records)

    def done(self, wave: WaveId, steps: tuple[StepTime, ...], now_ns: int) -> WaveEntry | None:
        """The last stage has done it."""
        entry = self._in_flight.pop(wave, None)
        if entry is not None:
            entry.done_ns, entry.steps = now_ns, steps
            self._done.append(entry)
        return entry

    @property
    def tokens_in_flight_max(self) -> int:
        """Of the largest wave that is in flight."""
        return max((sum(chunk[2] for chunk in e.chunks) for e in self._in_flight.values()), default=0)

    def reset(self) -> None:
        """The epoch moved: what was in flight never gets done."""
        self._in_flight.clear()

    def last(self, waves_max: int) -> list[WaveEntry]:
        """Finished waves, oldest first; 0 = all that are kept. They change no more."""
        entries = list(self._done)
        return entries[-waves_max:] if waves_max else entries


def timeline_response(entries: list[WaveEntry]) -> prefill_pb2.GetTimelineResponse:
    """For the wire. A full timeline takes about a second, so call it off the event loop."""
    return prefill_pb2.GetTimelineResponse(waves=[_record(e) for e in entries])


def _record(entry: WaveEntry) -> prefill_pb2.WaveRecord:
    return prefill_pb2.WaveRecord(
        wave=entry.wave,
        pipeline_epoch=entry.epoch,
        issued_unix_ns=entry.issued_ns,
        done_unix_ns=entry.done_ns,
        steps=[encode_step(step) for step in entry.steps],
        chunks=[
            prefill_pb2.WaveChunkRecord(request_id=r, start=s, length=length, decode=d)
            for r, s, length, d in entry.chunks
        ],
    )
