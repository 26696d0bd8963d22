"""What the stages of a deployment cost and which model emulated ones pretend to run: one JSON file drives both the
simulator and emulated stages."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wavepp.core.errors import InvalidInputError
from wavepp.core.waves.cost import StageCost

EMULATED: Final = "emulated"
_DEFAULT: Final = "small"
_PACKAGE: Final = "wavepp.profiles"
_SUFFIX: Final = ".json"
_BYTES_MAX: Final = 1 << 20


class ProfileError(InvalidInputError):
    """There is no such profile, it makes no sense, or it cannot be emulated."""


class EmulatedFault(BaseModel):
    """What a step of stage `stage` does that computes token id `token`: it raises, it ends its process at once (like a
    crash in native code), or it never ends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: int = Field(ge=0)
    stage: int = Field(ge=0, le=63)
    does: Literal["raise", "exit", "hang"]


class EmulatedModel(BaseModel):
    """What emulated stages pretend to run. `hidden_bytes`: bytes per token that cross a cut. `faults`: for trying out
    failures."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: int = Field(ge=1, le=1024)
    vocab_size: int = Field(ge=2, le=1 << 31)
    max_tokens: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    hidden_bytes: int = Field(ge=16, le=1 << 20)
    eos_token_ids: tuple[int, ...] = ()
    faults: tuple[EmulatedFault, ...] = Field((), max_length=64)


_OLD_FORMAT: Final = (
    "has layer_cost, which emulated profiles no longer have: their format is now that of all profiles. Say instead "
    "what a stage costs on measured_stages stages (launch_ms = step_us / 1e3; token_us, and pair_ps = token_key_us x "
    '1e6, times the layers of such a stage), slowdown in place of stages, and under "model" '
    f"{', '.join(EmulatedModel.model_fields)}; what the simulator needs is required too (docs/scheduling.md lists all "
    "fields), and the model is served as emulated-NAME unless NAME begins so"
)


class Profile(BaseModel):
    """One deployment of one model.

    `launch_ms`, `token_us`, `pair_ps`: what a step costs on a stage, on `measured_stages` stages; `slowdown`: by stage
    index, how many times as slow a stage is (empty: all equal). `hop_ms`: from a stage's end to the next one's start.
    `admission_ms`: from a request's arrival to its grant, with room. `pool_tokens`: what every stage's cache holds.
    `derived`: whether the figures were measured here, fitted to published ones, or made up, and how; shown with every
    result. `model`: only where the profile can be emulated.
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
    model: EmulatedModel | None = None

    def stages(self, count: int) -> list[StageCost]:
        """Every stage's cost when the model is split evenly over `count` stages."""
        return [self.stage_cost(stage, count, 1.0 / count) for stage in range(count)]

    def stage_cost(self, stage: int, count: int, part: float) -> StageCost:
        """Of stage `stage` of `count`, which has that part of the model's layers.

        Token and pair costs go by the layers; a launch costs the same. `slowdown` is spread over the new stages in
        order.
        """
        share = part * self.measured_stages
        base = StageCost(self.launch_ms, self.token_us * share / 1e3, self.pair_ps * share / 1e9)
        return base.scaled(self.slowdown[stage * len(self.slowdown) // count]) if self.slowdown else base

    def emulated(self) -> EmulatedModel:
        """Raises ProfileError when the profile does not say what to pretend."""
        if self.model is None:
            raise ProfileError(
                f'profile {self.name!r} cannot be emulated: it has no section "model" ('
                f"{', '.join(EmulatedModel.model_fields)}); give emulated:{_DEFAULT}, or emulated:FILE with a profile "
                "that has one"
            )
        return self.model


def is_emulated(model: str) -> bool:
    """Whether `model` names an emulated model: "emulated", "emulated:NAME" or "emulated:FILE"."""
    return model.partition(":")[0] == EMULATED


def emulated_profile(model: str) -> Profile:
    """That of an emulated model; "emulated" alone is the default one. Raises ProfileError."""
    return load_profile(model.partition(":")[2] or _DEFAULT)


def profile_names() -> list[str]:
    """Those that come with WavePP."""
    entries = resources.files(_PACKAGE).iterdir()
    return sorted(entry.name.removesuffix(_SUFFIX) for entry in entries if entry.name.endswith(_SUFFIX))


def load_profile(name_or_path: str) -> Profile:
    """One that comes with WavePP, by name, or a file. Raises ProfileError."""
    try:
        if name_or_path in profile_names():
            text = (resources.files(_PACKAGE) / f"{name_or_path}{_SUFFIX}").read_bytes()
        elif Path(name_or_path).is_file():
            with Path(name_or_path).open("rb") as file:
                text = file.read(_BYTES_MAX)
        else:
            raise ProfileError(
                f"profile {name_or_path!r} is neither a file nor one of {', '.join(profile_names())}; "
                f"give one of these or the path of a profile in JSON"
            )
        fields = json.loads(text)
        if isinstance(fields, dict) and "layer_cost" in fields:
            raise ProfileError(f"profile {name_or_path!r} {_OLD_FORMAT}")
        return Profile.model_validate(fields)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'all of it'}: {one['msg']}" for one in error.errors())
        raise ProfileError(f"profile {name_or_path!r}: {wrong}") from error
    except json.JSONDecodeError as error:
        raise ProfileError(f"profile {name_or_path!r} is not JSON: {error}") from error
    except (ValueError, OSError, RecursionError) as error:
        raise ProfileError(f"profile {name_or_path!r}: {error}") from error
