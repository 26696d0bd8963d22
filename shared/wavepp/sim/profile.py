"""Cost profiles: what the stages of a deployment cost, as files with their sources."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wavepp.core.errors import InvalidInputError
from wavepp.core.waves.cost import StageCost

_PACKAGE = "wavepp.sim"
_SUFFIX = ".json"
_BYTES_MAX = 1 << 20


class Profile(BaseModel):
    """One deployment of one model.

    `stage`: what a step costs on a stage, on `measured_stages` stages; `slowdown`: by stage index, how many times as
    slow a stage is (empty: all equal). `hop_ms`: from a stage's end to the next one's start. `admission_ms`: from a
    request's arrival to its grant, with room. `pool_tokens`: what every stage's cache holds. `derived`: whether the
    figures were measured here, fitted to published ones, or made up, and how; shown with every result.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(min_length=1, max_length=64)
    derived: str = Field(min_length=1)
    sources: tuple[str, ...] = ()
    measured_stages: int = Field(ge=1, le=64)
    launch_ms: float = Field(ge=0)
    token_us: float = Field(gt=0)
    pair_ps: float = Field(ge=0)
    slowdown: tuple[Annotated[float, Field(gt=0)], ...] = ()
    hop_ms: float = Field(0.0, ge=0)
    admission_ms: float = Field(0.0, ge=0)
    wave_tokens_max: int = Field(ge=64)
    wave_tokens_min: int = Field(ge=64)
    wave_requests_max: int = Field(128, ge=1, le=512)
    block_tokens: int = Field(64, ge=1)
    pool_tokens: int = Field(ge=1)

    def stages(self, count: int) -> list[StageCost]:
        """Every stage's cost when the model is split over `count` stages.

        The layers' cost goes by the number of layers a stage has, so by `measured_stages` / `count`; a launch costs
        the same. `slowdown` is spread over the new stages in order.
        """
        share = self.measured_stages / count
        base = StageCost(self.launch_ms, self.token_us * share / 1e3, self.pair_ps * share / 1e9)
        return [base.scaled(self._slowdown(stage, count)) for stage in range(count)]

    def _slowdown(self, stage: int, count: int) -> float:
        return self.slowdown[stage * len(self.slowdown) // count] if self.slowdown else 1.0


def profile_names() -> list[str]:
    """Those that come with WavePP."""
    folder = resources.files(_PACKAGE) / "profiles"
    return sorted(entry.name.removesuffix(_SUFFIX) for entry in folder.iterdir() if entry.name.endswith(_SUFFIX))


def load_profile(name_or_path: str) -> Profile:
    """One that comes with WavePP, by name, or a file. Raises InvalidInputError."""
    try:
        if name_or_path in profile_names():
            text = (resources.files(_PACKAGE) / "profiles" / f"{name_or_path}{_SUFFIX}").read_bytes()
        elif Path(name_or_path).is_file():
            with Path(name_or_path).open("rb") as file:
                text = file.read(_BYTES_MAX)
        else:
            raise InvalidInputError(
                f"profile {name_or_path!r} is neither a file nor one of {', '.join(profile_names())}; "
                f"give one of these or the path of a profile in JSON"
            )
        return Profile.model_validate(json.loads(text))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'all of it'}: {one['msg']}" for one in error.errors())
        raise InvalidInputError(f"profile {name_or_path!r}: {wrong}") from error
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"profile {name_or_path!r} is not JSON: {error}") from error
    except (ValueError, OSError, RecursionError) as error:
        raise InvalidInputError(f"profile {name_or_path!r}: {error}") from error
