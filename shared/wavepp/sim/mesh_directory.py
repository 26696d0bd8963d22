"""The directory of a simulated mesh: admission, its rounds streams and the ledger in etcd."""

from __future__ import annotations

from collections import deque
from typing import Final

from wavepp.core.directory import events as directory_ev
from wavepp.core.directory.admission import Admission
from wavepp.core.errors import InvariantError
from wavepp.core.ids import DirectoryEpoch, GrantId, PipelineEpoch, RequestId, StageIndex
from wavepp.core.router import events as router_ev
from wavepp.core.stage import events as stage_ev
from wavepp.sim.delivery import Delivery
from wavepp.sim.mesh_config import MeshConfig, Peers, SimEtcd
from wavepp.sim.mesh_stages import SimStages

ETCD_RETRY_MS: Final = 100.0
"""While etcd is unavailable, whatever must be written is tried again after this time."""


class SimDirectory:
    """The directory that leads; `restart` puts another in its place.

    `indecipherable`: requests whose Prepare breaks the rounds stream of that stage.
    """

    def __init__(self, config: MeshConfig, delivery: Delivery, peers: Peers, stages: SimStages, etcd: SimEtcd) -> None:
        self._config = config
        self._delivery = delivery
        self._peers = peers
        self._stages = stages
        self._etcd = etcd
        self._unwritten: deque[directory_ev.SetRecord] = deque()
        self._directory_epoch = 0
        self.indecipherable: dict[RequestId, StageIndex] = {}
        self.admission = self._new_admission()

    def _new_admission(self) -> Admission:
        self._directory_epoch += 1
        return Admission(
            directory_epoch=DirectoryEpoch(self._directory_epoch),
            recurrent=self._config.recurrent,
            block_tokens=self._config.block_tokens,
            alignment_tokens=self._config.alignment_tokens,
        )

    # ---- processes and streams ----

    def restart(self) -> None:
        """The directory dies; another takes over what the ledger, the stages and the router know."""
        self._delivery.cut("rounds:", "answers:", "admit", "decide", "ledger")
        self._unwritten.clear()
        self.admission = self._new_admission()

    def connect(self, epoch: PipelineEpoch, live: frozenset[GrantId]) -> None:
        """It leads: it reads the ledger, hears of the router's epoch and grants, and finds the stages."""
        records = tuple((r.name, r.epoch, tuple(g for g, _, _ in r.grants)) for r in self._etcd.records.values())
        self.handle(directory_ev.LedgerLoaded(records))
        self.handle(directory_ev.RouterConnected(epoch, live))
        for stage in self._stages.processes:
            self.connect_rounds(stage.index)

    def connect_rounds(self, index: StageIndex, after_ms: float = 0.0) -> None:
        """The rounds stream to a stage is made (again), `after_ms` from now at the earliest."""
        known = self.admission.grants
        stage = self._stages.processes[index]

        def hello() -> None:
            if self._stages.processes[index] is not stage:
                return
            self._peers.tell_stage(index, stage_ev.DirectoryConnected(known))
            cursor = stage.sequencer.cache.cursor
            connected = directory_ev.StageConnected(index, stage.incarnation, cursor, known)
            self._delivery.send(f"answers:{index}", lambda: self.handle(connected))

        self._delivery.send(f"rounds:{index}", hello, after_ms)

    def change_ledger_writer(self) -> None:
        """There is one for each admission stream; it takes over what is to be deleted, and nothing else."""
        self._delivery.cut("ledger")
        kept = [r for r in self._unwritten if not r.grants]
        self._unwritten.clear()
        for record in kept:
            self._write_later(record)

    # ---- events ----

    def handle(self, event: directory_ev.Event) -> None:
        """The directory hears this now."""
        for instruction in self.admission.handle(event):
            self._do(instruction)

    def _do(self, instruction: directory_ev.Instruction) -> None:
        send, tell_stage = self._delivery.send, self._peers.tell_stage
        match instruction:
            case directory_ev.SendPrepare(stage=stage):
                prepare = stage_ev.PrepareArrived(instruction.round, instruction.epoch, instruction.grants)
                send(f"rounds:{stage}", lambda: self._prepare(stage, prepare))
            case directory_ev.RemakeStream(stage=stage):
                self._delivery.cut(f"rounds:{stage}", f"answers:{stage}")
                self.connect_rounds(stage)
            case directory_ev.SendLower(stage=stage):
                lower = stage_ev.LowerArrived(instruction.round, instruction.grants)
                send(f"rounds:{stage}", lambda: tell_stage(stage, lower))
            case directory_ev.SendAbort(stage=stage, grants=grants):
                send(f"rounds:{stage}", lambda: tell_stage(stage, stage_ev.AbortArrived(grants)))
            case directory_ev.AskDump(stage=stage):
                send(f"rounds:{stage}", lambda: self._dump(stage))
            case directory_ev.SetRecord():
                self._write_later(instruction)
            case directory_ev.Decide():
                decided = router_ev.Decided(instruction.batch, instruction.decisions, instruction.answered)
                send("decide", lambda: self._peers.dispatch(decided))

    def _prepare(self, stage: StageIndex, prepare: stage_ev.PrepareArrived) -> None:
        if any(self.indecipherable.get(RequestId(str(g.context))) == stage for g in prepare.grants):
            self._peers.rounds_broke(stage)
        else:
            self._peers.tell_stage(stage, prepare)

    def time_out_rounds(self) -> None:
        """The time of every round is up."""
        for number in self.admission.rounds:
            self.handle(directory_ev.RoundTimedOut(number))

    def _write_later(self, record: directory_ev.SetRecord, after_ms: float = 0.0) -> None:
        self._unwritten.append(record)
        self._delivery.send("ledger", self._write, after_ms)

    def _write(self) -> None:
        record, ok = self._unwritten.popleft(), self._etcd.up
        if ok and record.grants:
            self._etcd.records[record.name] = record
        elif ok:
            self._etcd.records.pop(record.name, None)
        elif record.round is None:
            # A mended record is tried until it is written.
            self._write_later(record, ETCD_RETRY_MS)
        if record.round is not None:
            self.handle(directory_ev.RecordWritten(record.round, ok, "" if ok else "etcd is unavailable"))

    def _dump(self, stage: StageIndex) -> None:
        it = self._stages.processes[stage]
        for segment in it.sequencer.cache.dump():
            event = directory_ev.CacheDumped(
                stage, it.incarnation, segment.keys, segment.snapshot_keys, segment.last, segment.cursor
            )
            self._send_dumped(event)

    def _send_dumped(self, event: directory_ev.CacheDumped) -> None:
        self._delivery.send(f"answers:{event.stage}", lambda: self.handle(event))

    def check_nothing_held(self) -> None:
        """Raises InvariantError when the directory or the ledger knows a grant."""
        if self.admission.grants or self.admission.rounds_in_flight:
            raise InvariantError(f"the directory still knows grants {sorted(self.admission.grants)}")
        if self._etcd.records:
            raise InvariantError(f"the ledger still has {sorted(self._etcd.records)}")
