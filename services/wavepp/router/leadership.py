"""When this router leads its pipeline, and everything that it then owns."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math

from wavepp.codec import admission
from wavepp.core.directory.events import EpochMoved
from wavepp.core.errors import InvariantError
from wavepp.core.ids import PipelineEpoch
from wavepp.core.limits import PROMPT_TOKENS_MAX
from wavepp.core.router import events as router_ev
from wavepp.core.router.dispatcher import Dispatcher, DispatchLimits
from wavepp.core.router.requests import FailureKind
from wavepp.core.waves.planner import WavePlanner
from wavepp.core.waves.policy_factory import make_policy
from wavepp.core.waves.types import PlannerConfig
from wavepp.infra.errors import StartupError
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.etcd.session import Session
from wavepp.infra.etcd.types import Fence
from wavepp.infra.leader import Leader
from wavepp.infra.registration import RegistrationError, StageRegistration, check_pipeline, in_order
from wavepp.infra.registry import Leading, watch_leader, watch_registrations
from wavepp.infra.tasks import TaskOwner
from wavepp.router.config import RouterConfig
from wavepp.router.directory_client import DirectoryClient
from wavepp.router.dispatch_driver import DispatchDriver, Sinks
from wavepp.router.errors import NotServingError
from wavepp.router.pipeline import Pipeline
from wavepp.router.request_validator import RequestValidator, ServedModel
from wavepp.router.timeline import Timeline
from wavepp.router.tokenizer import TextCodec
from wavepp.v1 import directory_pb2, stage_pb2

_log = logging.getLogger(__name__)


class Leadership:
    """A candidate. Its driver takes requests while it leads; when it does not any more they move to who leads next."""

    def __init__(
        self, config: RouterConfig, client: EtcdClient, codec: TextCodec | None, tasks: TaskOwner, instance: str = ""
    ) -> None:
        self.config = config
        self.instance = instance
        self.superseded = asyncio.Event()
        self.leader: Leader | None = None
        """Another router that leads."""
        self.leader_ready = False
        self.hindrance = ""
        """Why this router cannot be elected."""
        self.keys = PipelineKeys(config.cluster, config.pipeline)
        self.driver: DispatchDriver | None = None
        self.validator: RequestValidator | None = None
        self.pipeline: Pipeline | None = None
        self.stages: dict[int, StageRegistration] = {}
        self.served: StageRegistration | None = None
        """The first stage as it was when all were registered last; what all stages must agree on, it tells."""
        self.misfit = ""
        self.directory = DirectoryClient(
            client, self.keys, hello=self._hello, apply=self._apply, superseded=self.superseded.set
        )
        self._client = client
        self.codec = codec
        self._tasks = tasks
        self._fence: Fence | None = None
        self._session: Session | None = None
        self._directory_task: asyncio.Task[None] | None = None
        self._complete = asyncio.Event()
        self._turned = asyncio.Event()

    # ---- views ----

    @property
    def leading(self) -> bool:
        """Whether this router leads its pipeline."""
        return self._fence is not None

    @property
    def etcd_unavailable(self) -> bool:
        """Whether renewals of this process' lease fail."""
        return self._session is None or self._session.degraded

    def require_validator(self) -> tuple[RequestValidator, DispatchDriver]:
        """What takes requests in on the leader; raises NotServingError until all stages have been registered."""
        if self.validator is None or self.driver is None:
            raise NotServingError(self.misfit or "the stages of this pipeline are not all registered yet; try again")
        return self.validator, self.driver

    async def turned(self) -> None:
        """Return when another router leads than now, or this one instead."""
        await self._turned.wait()

    # ---- other routers ----

    async def watch_leader(self) -> None:
        """Follow who leads; a task of the process."""
        async with contextlib.aclosing(watch_leader(self._client, self.keys.router)) as leaders:
            async for leading in leaders:
                self.leader_changed(leading)

    def leader_changed(self, leading: Leading | None) -> None:
        """This is who leads, by etcd. What is older than this router's own leadership is no news."""
        if leading is None or leading.leader.instance == self.instance:
            self.leader = None
            return
        if self._fence is not None and leading.token <= self._fence.create_revision:
            return
        if self._fence is None and leading.leader == self.leader:
            return  # read once more: what is on its way to it goes on
        _log.info("router %s leads", leading.leader.address)
        self.step_down()
        self.leader = leading.leader
        self._turn()

    def _turn(self) -> None:
        self._turned.set()
        self._turned = asyncio.Event()

    # ---- stages ----

    async def watch_stages(self) -> None:
        """Follow the registrations; a task of the process."""
        async for stages in watch_registrations(self._client, self.keys):
            self.stages_changed(stages)

    def stages_changed(self, stages: dict[int, StageRegistration]) -> None:
        """These are registered now, by index."""
        self.stages = stages
        self._check_complete(stages)
        if self.pipeline is not None:
            self.pipeline.stages_changed(stages)

    def _check_complete(self, stages: dict[int, StageRegistration]) -> None:
        ordered = in_order(stages)
        if ordered is None:
            return
        try:
            check_pipeline(ordered)
        except RegistrationError as error:
            if self.misfit != str(error):
                _log.error("the registered stages are no pipeline: %s", error)
            self.misfit = str(error)
            return
        self.misfit = ""
        self.validator = RequestValidator(served_model(self.config, ordered), self.codec)
        before, self.served = self.served, ordered[0]
        if before is None or before.shared_facts != self.served.shared_facts:
            self._replace_driver(ordered)
        self._complete.set()

    def _replace_driver(self, stages: list[StageRegistration]) -> None:
        """The stages are the first ones, or of another shape: number, model, blocks or waves differ from before."""
        fence = self._fence
        if self.driver is not None:
            _log.warning("the stages serve something else than before: requests of before end")
            self.driver.fail_all(FailureKind.SHUTDOWN, "the stages were replaced by others; send the request again")
        self.step_down()
        self.driver = self._new_driver(stages)
        if fence is not None:
            self.lead(fence)

    def _new_driver(self, stages: list[StageRegistration]) -> DispatchDriver:
        config, first = self.config, stages[0]
        planner = WavePlanner(
            planner_config(config, stages),
            make_policy(
                config.policy,
                stages=len(stages),
                wave_tokens_max=first.wave_tokens_max,
                wave_tokens_min=wave_tokens_min(config, stages),
                block_tokens=first.block_tokens,
                hop_ms=config.hop_ms,
                fixed_grid=config.chunk_grid == "fixed",
            ),
        )
        limits = DispatchLimits(
            queue_requests_max=config.queue_requests_max,
            queue_tokens_max=config.queue_tokens_max,
            queue_retry_after_ms=1000,
            running_max=config.running_requests_max,
            attempts_max=config.attempts_max,
        )
        dispatcher = Dispatcher(limits=limits, planner=planner, block_tokens=first.block_tokens)
        sinks = Sinks(directory=self.directory.send, stage0=self._to_stage0, drained=self._drained)
        return DispatchDriver(dispatcher, sinks, Timeline(config.timeline_waves_max))

    # ---- leading ----

    async def until_ready(self, session: Session) -> None:
        """Nobody can lead a pipeline whose stages were never all registered."""
        self._session = session
        await self._complete.wait()

    async def begin(self, fence: Fence, session: Session) -> None:
        """This router leads, or goes on leading under another token."""
        self._session = session
        self.leader = None
        self.superseded.clear()
        if self.pipeline is None:
            self.lead(fence)
        else:
            self._fence = fence
            self.pipeline.renew(fence)
            self._talk_to_directory()
        self._turn()

    def standing_by(self, leader_ready: bool) -> None:
        """Another router leads, and is ready or not."""
        self.leader_ready = leader_ready

    def cannot_lead(self, reason: str) -> None:
        """Why this router cannot be elected; empty when it can."""
        self.hindrance = reason

    def step_down(self) -> None:
        """This router does not lead (any more), or the process stops: let go of the pipeline now, so that the ends of
        its streams are no news.
        """
        if self._directory_task is not None:
            self._directory_task.cancel()
            self._directory_task = None
        if self.pipeline is not None:
            self.pipeline.close()
            self.pipeline = None
            self._apply(router_ev.PipelineBroken("this router does not lead any more"))
            self._apply(router_ev.StagesDraining(0))  # who drains says so to whoever leads next
        self._fence = None
        if self.driver is not None:
            # They wait at the door for whoever leads next, and not for ever.
            self.driver.fail_all(FailureKind.MOVED, "this router does not lead any more")

    def lead(self, fence: Fence) -> None:
        """Take hold of the pipeline, as `fence` allows."""
        if self.served is None or self.driver is None:
            raise InvariantError("a router leads before all stages were registered")
        self._fence = fence
        self.pipeline = Pipeline(
            self.config,
            self._client,
            self.keys,
            fence,
            # Not of those that happen to be registered now: a stage may be missing.
            self.served.stages,
            self._tasks,
            apply=self._apply,
            on_ready=self._epoch_ready,
            superseded=self.superseded.set,
            step_bound=self.driver.step_bound,
        )
        self.pipeline.stages_changed(self.stages)
        self._talk_to_directory()

    def _talk_to_directory(self) -> None:
        if self._directory_task is not None:
            self._directory_task.cancel()
        self._directory_task = self._tasks.spawn(self.directory.run(), "directory")

    # ---- between the parts ----

    def _apply(self, event: router_ev.Event) -> None:
        if self.driver is not None:
            self.driver.apply(event)

    def _to_stage0(self, command: stage_pb2.ControlCommand) -> None:
        if self.pipeline is not None:
            self.pipeline.send_to_stage0(command)

    def _drained(self) -> None:
        if self.pipeline is not None:
            self.pipeline.drained()

    def _epoch_ready(self, epoch: PipelineEpoch) -> None:
        self.directory.send(admission.encode_command(EpochMoved(epoch)))

    def _hello(self) -> directory_pb2.AdmissionHello:
        if self._fence is None or self._session is None or self.driver is None:
            raise NotServingError("this router does not lead")
        dispatcher = self.driver.dispatcher
        return directory_pb2.AdmissionHello(
            cluster=self.config.cluster,
            pipeline=self.config.pipeline,
            router_token=self._fence.create_revision,
            router_etcd_lease=self._session.lease,
            pipeline_epoch=dispatcher.epoch,
            live_grants=dispatcher.live_grants(),
            alignment_tokens=self.validator.model.alignment_tokens if self.validator else 0,
        )


def served_model(config: RouterConfig, stages: list[StageRegistration]) -> ServedModel:
    """What requests must fit, from what the stages say and what the configuration limits. Raises StartupError."""
    first = stages[0]
    tightest = min(stages, key=lambda s: s.kv_blocks)
    prompt_tokens_max = min(config.prompt_tokens_max or first.tokens_max, first.tokens_max, PROMPT_TOKENS_MAX)
    if first.wave_tokens_max < max(s.alignment_tokens for s in stages):
        raise StartupError(f"wave_tokens_max {first.wave_tokens_max} is below the model's alignment")
    return ServedModel(
        name=config.served_model_name or first.model_name,
        fingerprint=first.fingerprint,
        cache_dtype=first.cache_dtype,
        vocab_size=first.vocab_size,
        tokens_max=first.tokens_max,
        prompt_tokens_max=prompt_tokens_max,
        output_tokens_max=config.output_tokens_max,
        block_tokens=first.block_tokens,
        alignment_tokens=endpoint_alignment(config, stages),
        eos_token_ids=frozenset(first.eos_token_ids),
        kv_blocks_min=tightest.kv_blocks,
        kv_blocks_min_stage=tightest.stage,
    )


def endpoint_alignment(config: RouterConfig, stages: list[StageRegistration]) -> int:
    """Endpoints are multiples of it: of what every stage needs, and of M on a fixed chunk grid.

    A chunk that begins at an endpoint off the grid would be another one than an uncached run computes, and with other
    shapes come other bits.
    """
    own = math.lcm(*(s.alignment_tokens for s in stages))
    return math.lcm(own, stages[0].wave_tokens_max) if config.chunk_grid == "fixed" else own


def planner_config(config: RouterConfig, stages: list[StageRegistration]) -> PlannerConfig:
    """What bounds a wave: what the configuration says, and what the stages have room for."""
    first = stages[0]
    return PlannerConfig(
        stages=len(stages),
        wave_tokens_max=first.wave_tokens_max,
        wave_tokens_min=wave_tokens_min(config, stages),
        block_tokens=first.block_tokens,
        alignment_tokens=math.lcm(*(s.alignment_tokens for s in stages)),
        # The stages have room for no more rows than that.
        wave_requests_max=min(config.wave_requests_max, first.wave_requests_max),
        fixed_grid=config.chunk_grid == "fixed",
    )


def wave_tokens_min(config: RouterConfig, stages: list[StageRegistration]) -> int:
    """b_min: as configured, or a quarter of M, but no less than a block.

    A lone prompt keeps P stages busy only when it makes some times P waves; half of M would leave it too few.
    """
    return config.wave_tokens_min or max(stages[0].block_tokens, stages[0].wave_tokens_max // 4)
