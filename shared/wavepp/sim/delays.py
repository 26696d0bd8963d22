"""How long messages of a timed mesh are under way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamDelays:
    """In ms, one way. `hop`: a wave, from a stage to the next one. `control`: between the router and a stage.
    `admit`: between the router and the directory. `rounds`: between the directory and a stage. `ledger`: a write to
    etcd; `etcd`: raising the epoch there.
    """

    hop: float = 0.0
    control: float = 0.0
    admit: float = 0.0
    rounds: float = 0.0
    ledger: float = 0.0
    etcd: float = 1.0

    @classmethod
    def from_admission(cls, hop_ms: float, admission_ms: float, control_ms: float = 0.0) -> StreamDelays:
        """Such that a round that needs no second question takes `admission_ms` from the router's view.

        It goes to the directory, to the stages and back; the ledger is written while the stages answer.
        """
        way = admission_ms / 4.0
        return cls(hop_ms, control_ms, way, way, ledger=2.0 * way)

    def of(self, stream: str) -> float:
        """Of a stream by name. Jobs, sends and timers have no way to go."""
        match stream.partition(":")[0]:
            case "link":
                return self.hop
            case "control" | "events" | "lost":
                return self.control
            case "admit" | "decide":
                return self.admit
            case "rounds" | "answers":
                return self.rounds
            case "ledger":
                return self.ledger
            case "epoch":
                return self.etcd
            case _:
                return 0.0
