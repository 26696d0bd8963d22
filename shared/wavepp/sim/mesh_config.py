"""The shape of a simulated mesh, and what its processes share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from wavepp.core.cache.types import CacheShape, PoolSizes, pins_limit
from wavepp.core.directory import events as directory_ev
from wavepp.core.router import epochs as ep
from wavepp.core.router import events as router_ev
from wavepp.core.stage import events as stage_ev
from wavepp.core.waves.policies import StaticPolicy, WavePolicy
from wavepp.core.waves.types import PlannerConfig

PolicyFactory: TypeAlias = Callable[[PlannerConfig], WavePolicy]
"""A new policy for every new router."""


def static_policy(planner: PlannerConfig) -> WavePolicy:
    """Every wave may have M tokens."""
    return StaticPolicy(planner.wave_tokens_max)


@dataclass(frozen=True, slots=True)
class MeshConfig:
    """Shape of a simulated mesh. `stage_blocks`: capacity of every stage's pool; `recurrent`: which stages have
    recurrent layers, with how many state and snapshot slots (none: no stage has). `planner`: what bounds a wave; by
    default what follows from the fields before it. `validate`: every process checks every invariant after every event,
    which takes most of a run's time.
    """

    stage_blocks: tuple[int, ...]
    block_tokens: int = 4
    wave_tokens_max: int = 16
    running_max: int = 64
    queue_requests_max: int = 4096
    queue_tokens_max: int = 1 << 30
    attempts_max: int = 50
    fixed_grid: bool = False
    recurrent: tuple[bool, ...] = ()
    state_slots: int = 4
    snapshot_slots: int = 6
    alignment_blocks: int = 1
    planner: PlannerConfig | None = None
    validate: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "recurrent", self.recurrent or (False,) * self.stages)

    @property
    def alignment_tokens(self) -> int:
        """Endpoints, chunk ends and snapshots are multiples of it."""
        return self.block_tokens * self.alignment_blocks

    @property
    def stages(self) -> int:
        """P."""
        return len(self.stage_blocks)

    def planner_config(self) -> PlannerConfig:
        """What bounds a wave."""
        return self.planner or PlannerConfig(
            stages=self.stages,
            wave_tokens_max=self.wave_tokens_max,
            wave_tokens_min=self.wave_tokens_max // 2,
            block_tokens=self.block_tokens,
            alignment_tokens=self.alignment_tokens,
            fixed_grid=self.fixed_grid,
            snapshot_interval_tokens=self.wave_tokens_max if any(self.recurrent) else 0,
        )

    def cache_shape(self, stage: int) -> CacheShape:
        """Of a stage's cache."""
        blocks, recurrent = self.stage_blocks[stage], self.recurrent[stage]
        pins = pins_limit(blocks, self.block_tokens, self.stages, self.planner_config().wave_tokens_max)
        sizes = PoolSizes(blocks, self.state_slots, self.snapshot_slots) if recurrent else PoolSizes(blocks)
        return CacheShape(self.block_tokens, self.alignment_tokens, recurrent, sizes, pins)


class Peers(Protocol):
    """How a simulated process reaches the others when its message arrives there: at once."""

    def dispatch(self, event: router_ev.Event) -> None:
        """The router's dispatcher hears this."""

    def keep(self, event: ep.Event) -> None:
        """The router's keeper of epochs hears this."""

    def announced(self, announce: ep.Announce) -> None:
        """A stage hears of an epoch and of the stage after it."""

    def admit(self, event: directory_ev.Event) -> None:
        """The directory's admission hears this."""

    def tell_stage(self, index: int, event: stage_ev.Event) -> None:
        """A stage's sequencer hears this."""

    def rounds_broke(self, index: int) -> None:
        """The rounds stream to a stage broke."""

    def drained(self, index: int) -> None:
        """A stage that is to stop hears that nothing runs."""

    def died(self, index: int) -> None:
        """A stage's process is gone."""


@dataclass(slots=True)
class SimEtcd:
    """What etcd holds, and whether it can be reached. `records`: the ledger, by name."""

    up: bool = True
    epoch: int = 0
    records: dict[str, directory_ev.SetRecord] = field(default_factory=dict)
