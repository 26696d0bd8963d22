"""When this directory leads: elections, the stages' registrations, and the admission of its pipeline."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from wavepp.core.errors import PeerProtocolError, SupersededError
from wavepp.core.ids import DirectoryEpoch, GrantId, PipelineEpoch, StageIndex
from wavepp.directory.config import DirectoryConfig
from wavepp.directory.ledger_writer import LedgerWriter, decode_record
from wavepp.directory.pipeline_admission import PipelineAdmission
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.errors import EtcdError, SessionLostError
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.etcd.session import Session
from wavepp.infra.etcd.types import Fence
from wavepp.infra.metrics import Metrics
from wavepp.infra.outbox import Outbox
from wavepp.infra.registration import StageRegistration, in_order
from wavepp.infra.registry import watch_registrations
from wavepp.infra.tasks import TaskOwner
from wavepp.v1 import directory_pb2, prefill_pb2

_log = logging.getLogger(__name__)

TXN_BUCKETS_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)

Records = tuple[tuple[str, PipelineEpoch, tuple[GrantId, ...]], ...]


class DirectoryNotReadyError(PeerProtocolError):
    """This directory cannot serve a router now: it does not lead, or the stages are not complete."""


class Leadership:
    """A candidate. While it leads and all stages are registered, it has an admission."""

    def __init__(self, config: DirectoryConfig, client: EtcdClient, metrics: Metrics, tasks: TaskOwner) -> None:
        self._config = config
        self._client = client
        self._tasks = tasks
        self.keys = PipelineKeys(config.cluster, config.pipeline)
        self._admission: PipelineAdmission | None = None
        self._fence: Fence | None = None
        self._records: Records = ()
        self._stages: dict[int, StageRegistration] = {}
        self._ledger: LedgerWriter | None = None
        self._ledger_task: asyncio.Task[None] | None = None
        self._router_token = 0
        self.superseded = asyncio.Event()
        self._txn_seconds = metrics.histogram(
            "etcd_txn", "seconds", "Time of a transaction that wrote the ledger.", buckets=TXN_BUCKETS_S
        )
        grants = metrics.gauge("grants", "grants", "Grants that are alive.")
        grants.set_function(lambda: len(self._admission.core.grants) if self._admission else 0)
        hints = metrics.gauge("hint_keys", "keys", "Prefix keys in the hint index.")
        hints.set_function(lambda: self._admission.core.hints.sizes()[0] if self._admission else 0)

    # ---- leading ----

    async def until_ready(self, session: Session) -> None:
        """A directory may lead before there are stages."""

    async def begin(self, fence: Fence, session: Session) -> None:
        """This directory leads; what it is to go on with, the ledger says. Raises EtcdError."""
        self._records = await self._load_records()
        self._drop_admission()
        self.superseded.clear()
        self._fence = fence
        self._refresh_admission()
        _log.info("%d records in the ledger", len(self._records))

    def step_down(self) -> None:
        """This directory does not lead (any more)."""
        self._fence = None
        self._drop_admission()

    def standing_by(self, leader_ready: bool) -> None:
        """Another directory leads. Nobody asks this one, so how that one is does not matter."""

    def cannot_lead(self, reason: str) -> None:
        """It was logged; a directory that does not lead has nobody to tell."""

    async def _load_records(self) -> Records:
        snapshot = await self._client.get_prefix(self.keys.grants)
        records = []
        for item in snapshot.items:
            name = item.key.removeprefix(self.keys.grants)
            try:
                epoch, grants = decode_record(item.value)
            except ValueError as error:
                _log.warning("%s: %s", item.key, error)
                epoch, grants = PipelineEpoch(0), ()
            records.append((name, epoch, grants))
        return tuple(records)

    def _drop_admission(self) -> None:
        if self._ledger_task is not None:
            self._ledger_task.cancel()
            self._ledger_task = None
        self._ledger = None
        if self._admission is not None:
            self._admission.close()
            self._admission = None

    # ---- stages ----

    async def watch_stages(self) -> None:
        """Follow the registrations; a task of the process."""
        async for stages in watch_registrations(self._client, self.keys):
            self.stages_changed(stages)

    def stages_changed(self, stages: dict[int, StageRegistration]) -> None:
        """These are registered now, by index."""
        self._stages = stages
        if self._fence is not None:
            self._refresh_admission()

    def _refresh_admission(self) -> None:
        """Make or adapt the admission for the stages that are registered now."""
        stages = self._stages
        complete = in_order(stages) is not None
        if self._admission is not None and complete and self._admission.fits(stages):
            self._admission.stages_changed(stages)
        elif complete and self._fence is not None:
            self._drop_admission()
            epoch = DirectoryEpoch(self._fence.create_revision)
            self._admission = PipelineAdmission(
                self._config, epoch, stages, self._records, self._tasks, superseded=self.superseded.set
            )
            self._records = ()
        # Stages that are missing for a while change nothing: their streams say that they are gone.

    # ---- the router ----

    def router_hello(
        self, hello: directory_pb2.AdmissionHello, outbox: Outbox[directory_pb2.AdmissionEvent]
    ) -> PipelineAdmission:
        """A router's stream begins. Raises DirectoryNotReadyError or PeerProtocolError."""
        if (hello.cluster, hello.pipeline) != (self._config.cluster, self._config.pipeline):
            raise PeerProtocolError(
                f"the router serves {hello.cluster}/{hello.pipeline}, this directory "
                f"{self._config.cluster}/{self._config.pipeline}"
            )
        admission, fence = self._admission, self._fence
        if admission is None or fence is None:
            raise DirectoryNotReadyError(
                "this directory does not lead yet, or not all stages are registered; try again"
            )
        if hello.router_token < self._router_token or not hello.router_token:
            raise SupersededError(f"router {hello.router_token} is deposed, {self._router_token} leads")
        admission.check_alignment(hello.alignment_tokens)
        self._router_token = hello.router_token
        if self._ledger_task is not None:
            self._ledger_task.cancel()
        self._ledger = LedgerWriter(
            self._client,
            self.keys,
            [fence, Fence(self.keys.router, hello.router_token)],
            hello.router_etcd_lease,
            written=admission.apply,
            observe=self._txn_seconds.observe,
            failing=admission.ledger_failing,
            deletions=self._ledger.deletions if self._ledger is not None else (),
        )
        self._ledger_task = self._tasks.spawn(self._ledger.run(), "ledger")
        outbox.put(
            directory_pb2.AdmissionEvent(hello=directory_pb2.AdmissionHelloAck(directory_epoch=fence.create_revision))
        )
        live = frozenset(GrantId(g) for g in hello.live_grants)
        admission.router_connected(
            outbox, self._ledger, PipelineEpoch(hello.pipeline_epoch), live, hello.alignment_tokens
        )
        return admission

    async def status(self) -> prefill_pb2.DirectoryStatus:
        """For operators."""
        status = prefill_pb2.DirectoryStatus(reachable=True)
        with contextlib.suppress(EtcdError, SessionLostError):
            status.etcd_grant_records = len((await self._client.get_prefix(self.keys.grants)).items)
        if self._admission is not None:
            core = self._admission.core
            status.grants = len(core.grants)
            status.hint_keys = core.hints.sizes()[0]
            status.rounds_in_flight = core.rounds_in_flight
            status.rounds_done = core.rounds_done
            status.stage_in_sync.extend(core.in_sync(StageIndex(i)) for i in range(len(self._stages)))
        return status
