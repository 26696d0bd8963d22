"""What drives the dispatcher: events in from clients and streams, instructions out to streams and clients.

Everything runs on the event loop; nothing awaits between an event and its instructions.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from wavepp.codec import admission, control
from wavepp.core.errors import WaveppError
from wavepp.core.ids import RequestId
from wavepp.core.limits import TOKEN_BYTES
from wavepp.core.router import events as router_ev
from wavepp.core.router.dispatcher import Dispatcher
from wavepp.core.router.requests import FailureKind, NewRequest
from wavepp.core.waves.step_bound import StepBound
from wavepp.infra.faults import fatal_faults
from wavepp.router.calls import Call
from wavepp.router.errors import error_of
from wavepp.router.timeline import Timeline
from wavepp.v1 import directory_pb2, stage_pb2

STEP_UNLEARNED_MS: Final = 60_000.0
"""For a step that is larger than all of late, or the first, as the router waits for it."""
ID_WAIT_S: Final = 0.5


@dataclass(slots=True)
class Sinks:
    """Where instructions go. Each drops what is sent while its stream is down: the next epoch makes it void."""

    directory: Callable[[directory_pb2.AdmissionCommand], None]
    stage0: Callable[[stage_pb2.ControlCommand], None]
    drained: Callable[[], None]


class DispatchDriver:
    """Owns the dispatcher, the calls that wait, and the timers."""

    def __init__(self, dispatcher: Dispatcher, sinks: Sinks, timeline: Timeline) -> None:
        self.dispatcher = dispatcher
        self.timeline = timeline
        self.last_progress = time.monotonic()
        """When a wave was done last, the first one was issued, or work appeared where there was none."""
        self.step_bound = StepBound(0.0, STEP_UNLEARNED_MS)
        self._sinks = sinks
        self._calls: dict[RequestId, Call] = {}
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._started_ns = time.time_ns() - time.monotonic_ns()

    # ---- clients ----

    def submit(self, new: NewRequest, *, traced: bool) -> Call:
        """Take a request in. Raises what `Dispatcher.check` raises."""
        if self.dispatcher.idle:
            self.last_progress = time.monotonic()
        self.dispatcher.check(new.request, len(new.prompt) // TOKEN_BYTES)
        call = Call(new.request, traced)
        self._calls[new.request] = call
        self.apply(router_ev.Submit(new))
        return call

    async def until_free(self, request: RequestId) -> None:
        """Wait a moment for a request of this id to end. Who cancels a call and sends it again may find it running:
        the new call can overtake the word that the old one is cancelled.
        """
        if (call := self._calls.get(request)) is not None:
            with contextlib.suppress(TimeoutError, WaveppError):
                async with asyncio.timeout(ID_WAIT_S):
                    await call.result()

    def stop(self, call: Call, kind: FailureKind, message: str) -> None:
        """The client is gone, or its deadline passed. Nothing when the request has ended, whoever has its id now."""
        if self._calls.get(call.request) is call:
            self.apply(router_ev.Stop(call.request, kind, message))

    def fail_all(self, kind: FailureKind, message: str) -> None:
        """End every request (the process stops)."""
        for call in list(self._calls.values()):
            self.stop(call, kind, message)

    def wave_limit_s(self, stages: int) -> float:
        """How long a pipeline with waves in flight may go without one done: each stage one step, by its bound."""
        return stages * self.step_bound.limit_ms(self.timeline.tokens_in_flight_max) / 1e3

    @property
    def stalled_s(self) -> float:
        """How long there has been work without a wave done, in seconds."""
        return 0.0 if self.dispatcher.idle else time.monotonic() - self.last_progress

    def wall_ns(self, monotonic_ms: float) -> int:
        """Wall clock, in nanoseconds, of a time on the dispatcher's clock."""
        return self._started_ns + int(monotonic_ms * 1e6)

    # ---- events and instructions ----

    def apply(self, event: router_ev.Event) -> None:
        """Let the dispatcher decide, and do what it says."""
        if isinstance(event, router_ev.WaveDone):
            self._wave_done(event)
        elif isinstance(event, router_ev.PipelineBroken):
            self.timeline.reset()
        without_waves = not self.dispatcher.waves_in_flight
        with fatal_faults("the router's dispatcher"):
            for instruction in self.dispatcher.handle(event, time.monotonic_ns() / 1e6):
                self._do(instruction)
        if without_waves and self.dispatcher.waves_in_flight:
            # However long the work has waited: these waves are new, and have their time.
            self.last_progress = time.monotonic()
        if self.dispatcher.idle:
            self._idle.set()
        else:
            self._idle.clear()

    async def until_idle(self) -> None:
        """Return when no request and no end of a grant is under way."""
        await self._idle.wait()

    def _wave_done(self, event: router_ev.WaveDone) -> None:
        self.last_progress = time.monotonic()
        for step in event.steps:
            self.step_bound.observe(step.tokens, step.duration_ns / 1e6)
        entry = self.timeline.done(event.wave, event.steps, time.time_ns())
        if entry is None:
            return
        for request, _, _, _ in entry.chunks:
            call = self._calls.get(request)
            if call is not None and call.traced:
                call.waves.append(entry)

    def _do(self, instruction: router_ev.Instruction) -> None:
        match instruction:
            case router_ev.IssueWave():
                now_ns = time.time_ns()
                self.timeline.issued(instruction.wave, instruction.epoch, instruction.chunks, now_ns)
                self._sinks.stage0(control.encode_wave(instruction, now_ns))
            case router_ev.Drained():
                self._sinks.drained()
            case router_ev.EmitToken():
                call = self._calls.get(instruction.request)
                if call is not None:
                    call.token(instruction.index, instruction.chosen)
            case router_ev.Finish(outcome=outcome):
                call = self._calls.pop(outcome.request, None)
                if call is not None:
                    call.finish(outcome)
            case router_ev.Fail(failure=failure):
                call = self._calls.pop(failure.request, None)
                if call is not None:
                    call.fail(error_of(failure))
            case router_ev.RetryAfter(delay_ms=delay_ms):
                self._loop.call_later(delay_ms / 1000, self.apply, router_ev.RetryDue())
            case _:
                self._sinks.directory(admission.encode_command(instruction))
