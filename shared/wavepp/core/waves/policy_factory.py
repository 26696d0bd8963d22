"""The wave policies by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias, get_args

from wavepp.core.waves.cost import StageCost
from wavepp.core.waves.cost_policy import CostPolicy
from wavepp.core.waves.policies import MpuPolicy, StaticPolicy, WavePolicy

PolicyName: TypeAlias = Literal["static", "mpu", "cost"]
POLICY_NAMES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)


def make_policy(
    name: PolicyName,
    *,
    stages: int,
    wave_tokens_max: int,
    wave_tokens_min: int,
    block_tokens: int,
    priors: Sequence[StageCost] | None = None,
    hop_ms: float = 0.0,
    fixed_grid: bool = False,
) -> WavePolicy:
    """M, b_min and B in tokens. `priors`, `hop_ms`, `fixed_grid`: of `cost`; see `CostPolicy`."""
    match name:
        case "static":
            return StaticPolicy(wave_tokens_max)
        case "mpu":
            return MpuPolicy(
                stages=stages,
                wave_tokens_max=wave_tokens_max,
                wave_tokens_min=wave_tokens_min,
                block_tokens=block_tokens,
            )
        case "cost":
            return CostPolicy(
                stages=stages, wave_tokens_max=wave_tokens_max, priors=priors, hop_ms=hop_ms, fixed_grid=fixed_grid
            )
