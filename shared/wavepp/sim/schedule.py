"""The router's own scheduling in virtual time: its dispatcher and planner, with stages that only take time.

The directory is not there: every request is granted after a stated delay, with the reuse that the workload says, and
room never lacks. A wave of only ends of grants is done at once. `mesh` and `timed_mesh` simulate the rest; here runs of
ten thousand requests take a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wavepp.core.directory import events as directory_ev
from wavepp.core.directory.reuse_endpoint import ReuseExplanation
from wavepp.core.errors import InvariantError
from wavepp.core.ids import GrantId, PipelineEpoch, PrefixKey, RequestId, StageIndex
from wavepp.core.limits import TOKEN_BYTES
from wavepp.core.router import events as router_ev
from wavepp.core.router.dispatcher import Dispatcher, DispatchLimits
from wavepp.core.router.requests import NewRequest
from wavepp.core.waves.cost import StageCost, amount, total
from wavepp.core.waves.planner import WavePlanner
from wavepp.core.waves.policies import WavePolicy
from wavepp.core.waves.types import ChosenToken, PlannerConfig, StepTime
from wavepp.sim.clock import VirtualClock
from wavepp.sim.results import Finished, Log
from wavepp.sim.stages import TimedStages
from wavepp.sim.workload import Ask

_TOKEN = ChosenToken(0, 0.0)


@dataclass(frozen=True, slots=True)
class Delays:
    """In ms. `hop`: between stages. `admission`: from a batch of requests to its grants. `on_path`: what admitting a
    request costs every stage before the step that begins it; 0 but for the lockstep baseline.
    """

    hop: float = 0.0
    admission: float = 0.0
    on_path: float = 0.0


class ScheduleSim:
    """One pipeline. Drive it with `submit` from events of `clock`."""

    def __init__(
        self,
        costs: Sequence[StageCost],
        config: PlannerConfig,
        policy: WavePolicy,
        delays: Delays,
        *,
        running_max: int = 4096,
        record_spans: bool = False,
    ) -> None:
        """`running_max`: grants at once; stands for the room that the stages' pools have."""
        self.clock = VirtualClock()
        self.log = Log(spans=[] if record_spans else None)
        self.on_finished: Callable[[Finished], None] = lambda finished: None
        self._costs = tuple(costs)
        self._delays = delays
        self._stages = TimedStages(costs, delays.hop, self.log.spans)
        self._asks: dict[RequestId, Ask] = {}
        self._starts: dict[GrantId, int] = {}
        """Where the prefill of a grant begins, until it does."""
        self._submitted = 0
        self.dispatcher = Dispatcher(
            limits=DispatchLimits(1 << 20, 1 << 40, 100, running_max, 8),
            planner=WavePlanner(config, policy),
            block_tokens=config.block_tokens,
        )
        self._handle(router_ev.PipelineReady(PipelineEpoch(1)))
        self._handle(router_ev.DirectoryChanged(ready=True, new_stream=True))

    def submit(self, ask: Ask) -> None:
        """A request comes now."""
        self._submitted += 1
        request = RequestId(str(self._submitted))
        self._asks[request] = ask
        new = NewRequest(
            request=request,
            prompt=bytes(ask.prompt_tokens * TOKEN_BYTES),
            root_key=PrefixKey(b""),
            keys=b"",
            output_tokens_max=1,
            end_tokens=frozenset(),
            priority=0,
            context=ask,
        )
        self._handle(router_ev.Submit(new))

    def work_ms(self, ask: Ask) -> float:
        """A request's uncached work on the slowest stage."""
        work = amount(ask.cached_tokens, ask.prompt_tokens - ask.cached_tokens)
        return max(cost.work_ms(work) for cost in self._costs)

    # ---- inside ----

    def _handle(self, event: router_ev.Event) -> None:
        for instruction in self.dispatcher.handle(event, self.clock.now_ms):
            match instruction:
                case router_ev.SendAdmit():
                    self._admit(instruction)
                case router_ev.IssueWave():
                    self._issue(instruction)
                case router_ev.Finish(outcome=outcome):
                    self._finished(outcome.request, outcome.times.arrived)
                case router_ev.Fail(failure=failure):
                    raise InvariantError(f"request {failure.request} failed: {failure.message}")
                case _:
                    pass

    def _admit(self, batch: router_ev.SendAdmit) -> None:
        decisions = []
        for attempt in batch.attempts:
            ask = attempt.context
            if not isinstance(ask, Ask):
                raise InvariantError(f"grant {attempt.grant} is asked for without a request")
            cached = ask.cached_tokens
            reuse = ReuseExplanation(ask.prompt_tokens, cached, cached, cached, cached, None)
            decisions.append((attempt.grant, directory_ev.Granted(ask.cached_tokens, reuse)))
            self._starts[attempt.grant] = ask.cached_tokens
        decided = router_ev.Decided(batch.batch, tuple(decisions), answered=True)
        self.clock.after(self._delays.admission, lambda: self._handle(decided))

    def _issue(self, issued: router_ev.IssueWave) -> None:
        self.log.waves += bool(issued.chunks)
        chunks = [one.chunk for one in issued.chunks]
        beginning = sum(1 for chunk in chunks if self._starts.pop(chunk.grant, None) is not None)
        work = total((chunk.start, chunk.length) for chunk in chunks)
        if not chunks:
            # Only ends of grants: nothing runs.
            self.clock.after(0.0, lambda: self._wave_done(issued, ()))
            return
        passage = self._stages.run(
            issued.wave, self.clock.now_ms, work, chunks[0].grant, self._delays.on_path * beginning
        )
        step = router_ev.StepDone(StageIndex(0), issued.epoch, issued.wave)
        self.clock.at(passage.stage0_done_ms, lambda: self._handle(step))
        self.clock.at(passage.done_ms, lambda: self._wave_done(issued, passage.steps))

    def _wave_done(self, issued: router_ev.IssueWave, steps: tuple[StepTime, ...]) -> None:
        results = tuple((one.chunk.grant, _TOKEN) for one in issued.chunks if one.chunk.last)
        self._handle(router_ev.WaveDone(issued.epoch, issued.wave, results, (), steps))

    def _finished(self, request: RequestId, arrived_ms: float) -> None:
        ask = self._asks.pop(request)
        done = Finished(
            arrived_ms, self.clock.now_ms, ask.prompt_tokens, ask.cached_tokens, self.work_ms(ask), ask.kind
        )
        self.log.finished.append(done)
        self.on_finished(done)
