"""One pipeline's admission, while this directory leads and a router is connected: what drives the core.

Everything runs on the event loop; nothing awaits between an event and its instructions.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import NoReturn

from wavepp.codec import admission, rounds
from wavepp.core.directory import events as directory_ev
from wavepp.core.directory.admission import Admission
from wavepp.core.errors import PeerProtocolError
from wavepp.core.ids import DirectoryEpoch, GrantId, PipelineEpoch, RoundId, StageIndex
from wavepp.directory.config import DirectoryConfig
from wavepp.directory.ledger_writer import LedgerWriter
from wavepp.directory.stage_stream import StageStream
from wavepp.infra.faults import fatal_faults
from wavepp.infra.outbox import Outbox
from wavepp.infra.registration import StageRegistration
from wavepp.infra.tasks import TaskOwner
from wavepp.v1 import directory_pb2, stage_pb2


class PipelineAdmission:
    """Admission for the stages of one pipeline, with the streams that it needs.

    `registrations` must be complete and fit together. The stage streams begin when a router has said what it runs
    (`router_connected`): before that, nobody could tell a stage what to keep.
    """

    def __init__(
        self,
        config: DirectoryConfig,
        directory_epoch: DirectoryEpoch,
        registrations: dict[int, StageRegistration],
        records: tuple[tuple[str, PipelineEpoch, tuple[GrantId, ...]], ...],
        tasks: TaskOwner,
        *,
        superseded: Callable[[], None],
    ) -> None:
        self._superseded = superseded
        ordered = [registrations[i] for i in range(len(registrations))]
        self.block_tokens = ordered[0].block_tokens
        self.alignment_tokens = math.lcm(*(r.alignment_tokens for r in ordered))
        self.router: Outbox[directory_pb2.AdmissionEvent] = Outbox()
        self.router.close()
        self.core = Admission(
            directory_epoch=directory_epoch,
            recurrent=tuple(r.recurrent for r in ordered),
            block_tokens=self.block_tokens,
            alignment_tokens=self.alignment_tokens,
        )
        self._config = config
        self._directory_epoch = directory_epoch
        self._tasks = tasks
        self._ledger: LedgerWriter | None = None
        self._streams: dict[StageIndex, StageStream] = {}
        self._stream_tasks: dict[StageIndex, asyncio.Task[NoReturn]] = {}
        self._registrations = registrations
        self._reported_health: tuple[bool, str] | None = None
        self._ledger_error = ""
        self._loop = asyncio.get_running_loop()
        self._limits: dict[RoundId, asyncio.TimerHandle] = {}
        self._last_limited = RoundId(0)
        self.apply(directory_ev.LedgerLoaded(records))

    def fits(self, registrations: dict[int, StageRegistration]) -> bool:
        """Whether these stages are of the shape that this admission was made for."""
        return len(registrations) == len(self._registrations) and all(
            registrations[i].shared_facts == r.shared_facts and registrations[i].recurrent == r.recurrent
            for i, r in self._registrations.items()
        )

    # ---- who is connected ----

    def check_alignment(self, alignment_tokens: int) -> None:
        """Raises PeerProtocolError when a router's endpoints would not be endpoints of the stages."""
        if alignment_tokens % self.alignment_tokens:
            raise PeerProtocolError(
                f"the router aligns endpoints to {alignment_tokens} tokens, the stages to {self.alignment_tokens}"
            )

    def router_connected(
        self,
        router: Outbox[directory_pb2.AdmissionEvent],
        ledger: LedgerWriter,
        epoch: PipelineEpoch,
        live: frozenset[GrantId],
        alignment_tokens: int,
    ) -> None:
        """A router leads this pipeline and runs these grants; `check_alignment` was passed."""
        self.router.close()
        self.router, self._ledger, self._reported_health, self._ledger_error = router, ledger, None, ""
        self.apply(directory_ev.RouterConnected(epoch, live, alignment_tokens))
        self.stages_changed(self._registrations)
        self.tell_health()

    def stages_changed(self, registrations: dict[int, StageRegistration]) -> None:
        """Keep one stream to every registered stage process."""
        self._registrations = registrations
        if self.router.closed:
            return
        for registration in registrations.values():
            stage = StageIndex(registration.stage)
            present = self._streams.get(stage)
            if present is not None and present.registration.incarnation == registration.incarnation:
                continue
            self._end_stream(stage)
            stream = StageStream(
                registration,
                self._directory_epoch,
                self._config.pipeline,
                known=lambda: self.core.grants,
                apply=self.apply,
                superseded=self._superseded,
                connect_timeout_s=self._config.stage_connect_timeout_s,
            )
            self._streams[stage] = stream
            self._stream_tasks[stage] = self._tasks.spawn(stream.run(), f"stage-{stage}-rounds")

    def _end_stream(self, stage: StageIndex) -> None:
        task = self._stream_tasks.pop(stage, None)
        if task is not None:
            task.cancel()
        self._streams.pop(stage, None)

    def close(self) -> None:
        """This directory does not lead any more."""
        for stage in list(self._streams):
            self._end_stream(stage)
        for limit in self._limits.values():
            limit.cancel()
        self.router.close()

    # ---- events and instructions ----

    def apply(self, event: directory_ev.Event) -> None:
        """Let the core decide, and do what it says."""
        with fatal_faults("the directory's admission"):
            for instruction in self.core.handle(event):
                self._do(instruction)
        if isinstance(event, directory_ev.StageConnected | directory_ev.StageDisconnected):
            self.tell_health()

    def ledger_failing(self, reason: str) -> None:
        """Why no grant can be recorded; empty when it can. The router goes on asking: each round tries."""
        self._ledger_error = reason
        self.tell_health()

    def tell_health(self) -> None:
        """Tell the router whether grants can be made."""
        missing = [i for i in range(len(self._registrations)) if not self.core.connected(StageIndex(i))]
        ready = not missing
        reason = f"no stream to stage {missing[0]}" if missing else self._ledger_error
        if (ready, reason) != self._reported_health:
            self._reported_health = (ready, reason)
            health = directory_pb2.DirectoryHealth(ready=ready, reason=reason)
            self.router.put(directory_pb2.AdmissionEvent(health=health))

    def _do(self, instruction: directory_ev.Instruction) -> None:
        match instruction:
            case directory_ev.SendPrepare():
                self._limit(instruction.round)
                self._to_stage(instruction.stage, rounds.encode_prepare(instruction))
            case directory_ev.SendLower():
                self._to_stage(instruction.stage, rounds.encode_lower(instruction))
            case directory_ev.SendAbort():
                self._to_stage(instruction.stage, rounds.encode_abort(instruction))
            case directory_ev.RemakeStream(stage=stage):
                self._remake(stage)
            case directory_ev.AskDump():
                self._to_stage(instruction.stage, stage_pb2.RoundsCommand(dump=stage_pb2.DumpCache()))
            case directory_ev.SetRecord():
                if self._ledger is not None:
                    self._ledger.set(instruction)
            case directory_ev.Decide():
                self.router.put(admission.encode_decide(instruction))

    def _limit(self, number: RoundId) -> None:
        """Begin a round's time. A round that only waits for the ledger is not over with it."""
        if number > self._last_limited:
            self._last_limited = number
            self._limits[number] = self._loop.call_later(self._config.round_timeout_s, self._time_is_up, number)

    def _time_is_up(self, number: RoundId) -> None:
        self._limits.pop(number, None)
        self.apply(directory_ev.RoundTimedOut(number))

    def _remake(self, stage: StageIndex) -> None:
        stream = self._streams.get(stage)
        if stream is not None:
            stream.remake(f"no answer to an admission round within {self._config.round_timeout_s:g} s")
        self.tell_health()

    def _to_stage(self, stage: StageIndex, command: stage_pb2.RoundsCommand) -> None:
        stream = self._streams.get(stage)
        if stream is not None:
            stream.send(command)
