"""A router's dispatcher that tests drive by hand."""

from __future__ import annotations

from typing import TypeVar

from wavepp.core.directory.events import Granted, Verdict
from wavepp.core.directory.reuse_endpoint import ReuseExplanation
from wavepp.core.ids import GrantId, PipelineEpoch, RequestId, StageIndex
from wavepp.core.keys import Namespace, prefix_keys, root_key
from wavepp.core.router import events as router_ev
from wavepp.core.router.dispatcher import Dispatcher, DispatchLimits
from wavepp.core.router.requests import FailureKind, NewRequest
from wavepp.core.tokens import encode_tokens
from wavepp.core.waves.planner import WavePlanner
from wavepp.core.waves.policies import StaticPolicy
from wavepp.core.waves.types import ChosenToken, FailedGrant, PlannerConfig

B = 4
NAMESPACE = Namespace("model", "f32", B, None, None)
NO_REUSE = ReuseExplanation(8, 0, 0, 0, 0, None)
Kind = TypeVar("Kind")


def new_request(name: str, prompt: int = 8, outputs: int = 1, *, priority: int = 0) -> NewRequest:
    tokens = encode_tokens(range(prompt))
    keys = prefix_keys(NAMESPACE, tokens)
    return NewRequest(RequestId(name), tokens, root_key(NAMESPACE), keys, outputs, frozenset((99,)), priority, name)


class Router:
    """A dispatcher whose pipeline and directory are ready; keeps what it said."""

    def __init__(self, *, ready: bool = True, **limits: int) -> None:
        planner = WavePlanner(PlannerConfig(2, 16, 8, B, B), StaticPolicy(16))
        allowed = {"queue_requests_max": 99, "queue_tokens_max": 9999, "running_max": 99, "attempts_max": 9} | limits
        self.dispatcher = Dispatcher(
            limits=DispatchLimits(queue_retry_after_ms=5, **allowed), planner=planner, block_tokens=B
        )
        self.now = 0.0
        self.said: list[router_ev.Instruction] = []
        if ready:
            self.tell(router_ev.DirectoryChanged(ready=True))
            self.tell(router_ev.PipelineReady(PipelineEpoch(1)))

    def tell(self, event: router_ev.Event) -> list[router_ev.Instruction]:
        self.now += 1.0
        out = self.dispatcher.handle(event, self.now)
        self.dispatcher.validate()
        self.said += out
        return out

    def submit(self, name: str, prompt: int = 8, outputs: int = 1, *, priority: int = 0) -> list[router_ev.Instruction]:
        return self.tell(router_ev.Submit(new_request(name, prompt, outputs, priority=priority)))

    def stop(self, name: str) -> list[router_ev.Instruction]:
        return self.tell(router_ev.Stop(RequestId(name), FailureKind.CANCELLED, "gone"))

    @property
    def asked(self) -> router_ev.SendAdmit:
        """The latest batch."""
        return only(router_ev.SendAdmit, self.said)[-1]

    def decide(
        self, *verdicts: Verdict, batch: router_ev.SendAdmit | None = None, answered: bool = True
    ) -> list[router_ev.Instruction]:
        """Verdicts for a batch, in order."""
        batch = batch or self.asked
        grants = [a.grant for a in batch.attempts]
        return self.tell(router_ev.Decided(batch.batch, tuple(zip(grants, verdicts, strict=False)), answered))

    @property
    def wave(self) -> router_ev.IssueWave:
        """The latest wave."""
        return only(router_ev.IssueWave, self.said)[-1]

    def wave_done(
        self, *tokens: int, failed: tuple[FailedGrant, ...] = (), wave: router_ev.IssueWave | None = None
    ) -> list[router_ev.Instruction]:
        """The last stage has done a wave, and chose these tokens for its last chunks."""
        wave = wave or self.wave
        grants = [c.chunk.grant for c in wave.chunks if c.chunk.last]
        results = tuple((grant, ChosenToken(token, 0.0)) for grant, token in zip(grants, tokens, strict=False))
        return self.tell(router_ev.WaveDone(wave.epoch, wave.wave, results, failed, ()))

    def run(self, name: str, prompt: int = 8, outputs: int = 1) -> GrantId:
        """Submit and grant; returns the grant."""
        self.submit(name, prompt, outputs)
        self.decide(Granted(0, NO_REUSE))
        return self.asked.attempts[0].grant

    def new_epoch(self, epoch: int, *died: int) -> list[router_ev.Instruction]:
        """The pipeline breaks and is ready again, with other processes in place of those that died."""
        ready = router_ev.PipelineReady(PipelineEpoch(epoch), frozenset(StageIndex(s) for s in died))
        return [*self.tell(router_ev.PipelineBroken("link cut")), *self.tell(ready)]


def only(kind: type[Kind], out: list[router_ev.Instruction]) -> list[Kind]:
    return [i for i in out if isinstance(i, kind)]
