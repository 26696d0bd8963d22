"""The mesh without machines: the router's, the directory's and the stages' own classes, joined by simulated streams.

Who delivers when is a `Delivery`'s business: any legal interleaving, repeatable from a seed, or virtual time. What
stages compute, and for how long, is a `SimModel`'s. Processes are in `mesh_router`, `mesh_directory` and `mesh_stages`;
here they are joined, driven and broken.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from wavepp.core.directory import events as directory_ev
from wavepp.core.directory.admission import Admission
from wavepp.core.errors import InvariantError
from wavepp.core.ids import PipelineEpoch, RequestId, StageIndex
from wavepp.core.keys import Namespace, prefix_keys, root_key
from wavepp.core.router import epochs as ep
from wavepp.core.router import events as router_ev
from wavepp.core.router.dispatcher import Dispatcher
from wavepp.core.router.requests import Failure, FailureKind, NewRequest, RequestOutcome
from wavepp.core.stage import events as stage_ev
from wavepp.core.tokens import encode_tokens
from wavepp.sim.delivery import Deliver, Delivery, RandomOrder
from wavepp.sim.executor import FingerprintModel
from wavepp.sim.jobs import SimModel
from wavepp.sim.mesh_config import MeshConfig, PolicyFactory, SimEtcd, static_policy
from wavepp.sim.mesh_directory import SimDirectory
from wavepp.sim.mesh_router import SimRouter
from wavepp.sim.mesh_stages import SimStages, StageProcess


class SimMesh:
    """One pipeline of simulated processes. Drive it with `submit`, `cancel`, `kill_stage`, ... and `run`.

    `random`: what tests draw from; with `RandomOrder`, the default, the order of messages comes from it, too.
    """

    def __init__(
        self,
        config: MeshConfig,
        seed: int,
        *,
        delivery: Delivery | None = None,
        model: SimModel | None = None,
        policy: PolicyFactory = static_policy,
    ) -> None:
        self.config = config
        self.random = random.Random(seed)
        self.delivery = delivery or RandomOrder(self.random)
        self._model = model or FingerprintModel(config.block_tokens)
        self.deaths = 0
        """Stages that died of a request."""
        self.drains = 0
        """Stages that stopped after all had ended."""
        self.rounds_broken = 0
        """Rounds streams that broke of a request."""
        self._etcd = SimEtcd()
        self._stages = SimStages(config, self._model, self.delivery, self)
        self.router = SimRouter(config, self._model, policy, self.delivery, self, self._etcd)
        self._directory = SimDirectory(config, self.delivery, self, self._stages, self._etcd)
        for stage in self.stages:
            self._stages.register(stage.index)
        self._connect_directory()

    # ---- views ----

    @property
    def step(self) -> int:
        """Messages delivered."""
        return self.delivery.step

    @property
    def stages(self) -> list[StageProcess]:
        """The stages' processes, of now."""
        return self._stages.processes

    @property
    def dispatcher(self) -> Dispatcher:
        """Of the router that leads."""
        return self.router.dispatcher

    @property
    def admission(self) -> Admission:
        """Of the directory that leads."""
        return self._directory.admission

    @property
    def outcomes(self) -> dict[RequestId, RequestOutcome]:
        """Requests that were answered."""
        return self.router.outcomes

    @property
    def failures(self) -> dict[RequestId, Failure]:
        """Requests that failed."""
        return self.router.failures

    @property
    def streamed(self) -> dict[RequestId, list[int]]:
        """The tokens that clients got so far."""
        return self.router.streamed

    @property
    def finished_order(self) -> list[RequestId]:
        """Requests that were answered, first come first."""
        return self.router.finished_order

    @property
    def granted_in(self) -> dict[RequestId, int]:
        """The batch in which a request was granted (last)."""
        return self.router.granted_in

    @property
    def poisoned(self) -> dict[RequestId, StageIndex]:
        """Requests whose output is not finite on that stage."""
        return self._stages.poisoned

    @property
    def deadly(self) -> dict[RequestId, StageIndex]:
        """Requests that the process of that stage dies of, whenever it runs them."""
        return self._stages.deadly

    @property
    def indecipherable(self) -> dict[RequestId, StageIndex]:
        """Requests whose Prepare breaks the rounds stream of that stage."""
        return self._directory.indecipherable

    @property
    def frozen(self) -> set[str]:
        """Streams that do not deliver for now."""
        return self.delivery.frozen

    @property
    def etcd_up(self) -> bool:
        """Whether etcd can be reached."""
        return self._etcd.up

    @etcd_up.setter
    def etcd_up(self, up: bool) -> None:
        self._etcd.up = up

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Deliver messages until nothing is under way, or the condition holds."""
        self.delivery.run(until)

    # ---- clients ----

    def submit(
        self,
        request: str,
        prompt: tuple[int, ...],
        *,
        output_tokens_max: int = 1,
        salt: str | None = None,
        priority: int = 0,
    ) -> None:
        """A request that passed the door."""
        namespace = Namespace("sim", "u64", self.config.block_tokens, None, salt)
        tokens = encode_tokens(prompt)
        self.submit_new(
            NewRequest(
                request=RequestId(request),
                prompt=tokens,
                root_key=root_key(namespace),
                keys=prefix_keys(namespace, tokens),
                output_tokens_max=output_tokens_max,
                end_tokens=frozenset(),
                priority=priority,
                context=request,
            )
        )

    def submit_new(self, new: NewRequest) -> None:
        """The same, for who has its keys already. Its context must be its id, or it cannot be poisoned."""
        self.dispatch(router_ev.Submit(new))

    def cancel(self, request: str) -> None:
        """The client is gone."""
        self.dispatch(router_ev.Stop(RequestId(request), FailureKind.CANCELLED, "client gone"))

    # ---- faults ----

    def kill_stage(self, index: int, down_ms: float = 0.0) -> None:
        """The process dies with all it held; a new one registers, `down_ms` later."""
        stage = StageIndex(index)
        self.delivery.cut(f"control:{index}", f"events:{index}", f"rounds:{index}", f"answers:{index}", f"jobs:{index}")
        self.delivery.cut(f"link:{index}", f"link:{index - 1}", f"lost:{index}")
        self._stages.replace(stage)
        self.keep(ep.StageDown(stage, "killed"))
        for neighbour in (index - 1, index + 1):
            if 0 <= neighbour < self.config.stages:
                self._stages.link_lost(neighbour)
        self.admit(directory_ev.StageDisconnected(stage))
        self._stages.register(stage, down_ms)
        self._directory.connect_rounds(stage, down_ms)

    def stop_stage(self, index: int) -> None:
        """The process is to stop: it lets what runs end, then a new one takes its place."""
        self._stages.drain(StageIndex(index))

    def cut_link(self, index: int) -> None:
        """The link from stage `index` to the next breaks; what was on it is lost."""
        self.delivery.cut(f"link:{index}")
        self.stages[index].next_incarnation = ""
        self._stages.link_lost(index)

    def restart_router(self) -> None:
        """The router dies with its requests and streams; another leads, raises the epoch and finds the stages."""
        self._directory.change_ledger_writer()
        self.router.restart()
        for stage in self.stages:
            self._stages.register(stage.index)
            if stage.dead:
                self.died(stage.index)
        self.admit(directory_ev.RouterConnected(PipelineEpoch(0), frozenset()))
        self.dispatch(router_ev.DirectoryChanged(ready=True, new_stream=True))

    def cut_admission(self) -> None:
        """The stream between router and directory breaks and is made again."""
        self.delivery.cut("admit", "decide")
        self._directory.change_ledger_writer()
        self.admit(directory_ev.RouterConnected(self.dispatcher.epoch, self.dispatcher.live_grants()))
        self.dispatch(router_ev.DirectoryChanged(ready=True, new_stream=True))

    def restart_directory(self) -> None:
        """The directory dies; another takes over from the ledger, the stages and the router."""
        self._directory.restart()
        self._connect_directory()

    def cut_rounds(self, index: int) -> None:
        """The rounds stream to a stage breaks and is made again."""
        stage = StageIndex(index)
        self.delivery.cut(f"rounds:{index}", f"answers:{index}")
        self.admit(directory_ev.StageDisconnected(stage))
        self._directory.connect_rounds(stage)

    def time_out_rounds(self) -> None:
        """No stage has answered the directory in time."""
        self._directory.time_out_rounds()

    def _connect_directory(self) -> None:
        self._directory.connect(self.dispatcher.epoch, self.dispatcher.live_grants())
        self.dispatch(router_ev.DirectoryChanged(ready=True, new_stream=True))

    # ---- how the processes reach each other ----

    def dispatch(self, event: router_ev.Event) -> None:
        """The router's dispatcher hears this now."""
        self.router.dispatch(event)

    def keep(self, event: ep.Event) -> None:
        """The router's keeper of epochs hears this now."""
        self.router.keep(event)

    def announced(self, announce: ep.Announce) -> None:
        """A stage hears of an epoch now."""
        self._stages.announced(announce)

    def admit(self, event: directory_ev.Event) -> None:
        """The directory hears this now."""
        self._directory.handle(event)

    def tell_stage(self, index: int, event: stage_ev.Event) -> None:
        """A stage hears this now."""
        self._stages.handle(index, event)

    def rounds_broke(self, index: int) -> None:
        """What the stage was asked broke its stream."""
        self.rounds_broken += 1
        self.cut_rounds(index)

    def drained(self, index: int) -> None:
        """A stage that is to stop hears that nothing runs, and is gone."""
        if self.dispatcher.running:
            raise InvariantError(f"stage {index} was told that nothing runs, but {self.dispatcher.running} requests do")
        self.drains += 1
        self.kill_stage(index)

    def died(self, index: int) -> None:
        """A stage died of what it ran."""
        self.deaths += 1
        self.kill_stage(index)

    def send(self, stream: str, deliver: Deliver) -> None:
        """Append a message of a test's own to a stream."""
        self.delivery.send(stream, deliver)

    # ---- what must hold at the end ----

    def check_nothing_left(self) -> None:
        """Raises InvariantError when anything is still held after all requests have ended."""
        if not self.dispatcher.idle:
            raise InvariantError("the router still has requests, waves or ends")
        self._stages.check_nothing_held()
        self._directory.check_nothing_held()
