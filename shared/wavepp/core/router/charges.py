"""Who may have been what a stage died of. docs/protocol.md tells the rule, `WavesInFlight` which waves it was at."""

from __future__ import annotations

from collections.abc import Mapping

from wavepp.core.ids import GrantId, RequestId, StageIndex
from wavepp.core.router.requests import Failure, FailureKind, RequestRecord, RequestState
from wavepp.core.router.waves_in_flight import WavesInFlight


class Charges:
    """Remembers who ran when the pipeline broke, until it is known whether a stage had died."""

    def __init__(self, attempts_max: int) -> None:
        """`attempts_max`: so many charges end a request."""
        self._attempts_max = attempts_max
        self._lost: dict[GrantId, RequestRecord] = {}

    def broke(self, running: Mapping[GrantId, RequestRecord]) -> None:
        """The pipeline broke while these ran."""
        self._lost |= running

    def take(self, died: frozenset[StageIndex], waves: WavesInFlight) -> list[tuple[RequestRecord, StageIndex]]:
        """Who wait again and may have been what these stages died of. The pipeline works again: all is forgotten."""
        charged: dict[RequestId, tuple[RequestRecord, StageIndex]] = {}
        for stage in sorted(died):
            for grant in sorted(waves.suspected(stage, died)):
                record = self._lost.get(grant)
                if record is not None and record.state is RequestState.QUEUED:
                    charged[record.request] = (record, stage)
        self._lost.clear()
        waves.forget_lost(reports=bool(died))
        return list(charged.values())

    def failure(self, record: RequestRecord, stage: StageIndex, *, convicted: bool) -> Failure | None:
        """Why it fails, now that it was charged. `convicted`: it was a suspect, which ran alone."""
        if convicted:
            message = (
                f"stage {stage} ended while it ran this request, for the {record.charges}. time, and nothing else was "
                f"running; do not send it again as it is, and look for the reason in what stage {stage} logged"
            )
            return Failure(record.request, FailureKind.INTERNAL, message)
        if record.charges >= self._attempts_max:
            message = (
                f"a stage ended {record.charges} times while it may have run this request, the limit; the last was "
                f"stage {stage}"
            )
            return Failure(record.request, FailureKind.PIPELINE, message)
        return None
