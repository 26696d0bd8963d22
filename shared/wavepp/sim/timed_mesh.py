"""The whole mesh in virtual time: real admission, caches, eviction and waiting for room, with stages that only take
time. Where reuse is given and room never lacks, `schedule` does the same much faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import PrefixKey, RequestId
from wavepp.core.limits import KEY_BYTES, TOKEN_BYTES
from wavepp.core.router.requests import Failure, NewRequest, RequestOutcome
from wavepp.core.waves.cost import StageCost, amount
from wavepp.core.waves.policies import WavePolicy
from wavepp.core.waves.policy_factory import PolicyName, make_policy
from wavepp.core.waves.types import PlannerConfig
from wavepp.profiles.profile import Profile
from wavepp.sim.clock import VirtualClock
from wavepp.sim.delays import StreamDelays
from wavepp.sim.delivery import TimedOrder
from wavepp.sim.keyed import KeyedAsk
from wavepp.sim.mesh import SimMesh
from wavepp.sim.mesh_config import MeshConfig
from wavepp.sim.results import Finished, Log
from wavepp.sim.timed_executor import TimedModel

_ROOT: Final = PrefixKey(bytes(KEY_BYTES))
"""Nothing is hashed after it: prompts come with their keys, and nobody decodes."""

_QUEUE_REQUESTS_MAX: Final = 1 << 20
_QUEUE_TOKENS_MAX: Final = 1 << 40
_ATTEMPTS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class TimedSetup:
    """A deployment to simulate. `stages`, `pool_tokens`: the profile's if 0. `running_max`: grants at once.

    The queue has no limit here: overload shows as waiting.
    """

    profile: Profile
    policy: PolicyName
    block_tokens: int
    stages: int = 0
    pool_tokens: int = 0
    running_max: int = 256
    record_spans: bool = False
    validate: bool = False

    def __post_init__(self) -> None:
        if self.pool_blocks < 1:
            raise InvalidInputError(
                f"a pool of {self.pool_tokens or self.profile.pool_tokens:,} tokens does not hold one block of "
                f"{self.block_tokens} tokens; give it more"
            )

    @property
    def pool_blocks(self) -> int:
        """Of every stage."""
        return (self.pool_tokens or self.profile.pool_tokens) // self.block_tokens

    def costs(self) -> list[StageCost]:
        """By stage."""
        return self.profile.stages(self.stages or self.profile.measured_stages)

    def mesh_config(self) -> MeshConfig:
        """Dense stages, all with the same pool."""
        stages = len(self.costs())
        planner = PlannerConfig(
            stages=stages,
            wave_tokens_max=self.profile.wave_tokens_max,
            wave_tokens_min=self.profile.wave_tokens_min,
            block_tokens=self.block_tokens,
            alignment_tokens=self.block_tokens,
            wave_requests_max=self.profile.wave_requests_max,
        )
        return MeshConfig(
            stage_blocks=(self.pool_blocks,) * stages,
            block_tokens=self.block_tokens,
            running_max=self.running_max,
            queue_requests_max=_QUEUE_REQUESTS_MAX,
            queue_tokens_max=_QUEUE_TOKENS_MAX,
            attempts_max=_ATTEMPTS_MAX,
            planner=planner,
            validate=self.validate,
        )

    def make_policy(self, planner: PlannerConfig) -> WavePolicy:
        """The policy `cost` begins with the profile's costs."""
        return make_policy(
            self.policy,
            stages=planner.stages,
            wave_tokens_max=planner.wave_tokens_max,
            wave_tokens_min=planner.wave_tokens_min,
            block_tokens=planner.block_tokens,
            priors=self.costs(),
            hop_ms=self.profile.hop_ms,
            fixed_grid=planner.fixed_grid,
        )


class TimedMesh:
    """One pipeline. Drive it with `submit` from events of `clock`, then `run`; break `mesh` as you like.

    `on_finished`: called when a request has its first token. `failures`: requests that will have none. `queued_max`:
    the most requests that ever had no grant.
    """

    def __init__(self, setup: TimedSetup, seed: int = 0) -> None:
        self.clock = VirtualClock()
        self.log = Log(spans=[] if setup.record_spans else None)
        self.failures: list[Failure] = []
        self.queued_max = 0
        self.on_finished: Callable[[KeyedAsk, Finished], None] = lambda ask, finished: None
        costs = setup.costs()
        self._slowest = max(costs, key=lambda cost: cost.token_ms)
        self._asks: dict[RequestId, KeyedAsk] = {}
        self._submitted = 0
        profile = setup.profile
        delays = StreamDelays.from_admission(profile.hop_ms, profile.admission_ms)
        self.mesh = SimMesh(
            setup.mesh_config(),
            seed,
            delivery=TimedOrder(self.clock, delays),
            model=TimedModel(costs, self.log.spans),
            policy=setup.make_policy,
        )
        self.mesh.router.on_finished = self._finished
        self.mesh.router.on_failed = self._failed
        # All stages are there before the first request comes.
        self.mesh.run()
        self.start_ms = self.clock.now_ms

    def submit(self, ask: KeyedAsk) -> None:
        """A request comes now."""
        self._submitted += 1
        request = RequestId(str(self._submitted))
        self._asks[request] = ask
        self.mesh.submit_new(
            NewRequest(
                request=request,
                # Only its length is looked at.
                prompt=bytes(ask.prompt_tokens * TOKEN_BYTES),
                root_key=_ROOT,
                keys=ask.keys,
                output_tokens_max=1,
                end_tokens=frozenset(),
                priority=0,
                context=request,
            )
        )
        waiting = self.mesh.dispatcher.queued + self.mesh.dispatcher.admitting
        self.queued_max = max(self.queued_max, waiting)

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Until nothing is left to happen, or the condition holds."""
        self.mesh.run(until)
        self.log.waves = self.mesh.router.waves

    def work_ms(self, cached_tokens: int, prompt_tokens: int) -> float:
        """A request's uncached work on the slowest stage."""
        return self._slowest.work_ms(amount(cached_tokens, prompt_tokens - cached_tokens))

    def _finished(self, outcome: RequestOutcome) -> None:
        ask = self._asks.pop(outcome.request)
        times = outcome.times
        finished = Finished(
            arrived_ms=times.arrived,
            done_ms=times.first_token,
            prompt_tokens=outcome.prompt_tokens,
            cached_tokens=outcome.cached_tokens,
            work_ms=self.work_ms(outcome.cached_tokens, outcome.prompt_tokens),
            kind=ask.kind,
            waited_ms=times.granted - times.arrived,
        )
        self.log.finished.append(finished)
        self.on_finished(ask, finished)

    def _failed(self, failure: Failure) -> None:
        self._asks.pop(failure.request, None)
        self.failures.append(failure)
