"""Profiles of emulated models: small JSON files, checked by pydantic."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wavepp.core.keys import digest
from wavepp.stage.model.errors import CheckpointError, ModelNotFoundError

EMULATED_PREFIX = "emulated"
_DEFAULT = "small"


class StepCost(BaseModel):
    """Time of a step on one stage, in microseconds, for chunks of x tokens after L cached ones:

    t = step_us + sum over the chunks of (token_us * x + token_key_us * (2 * L * x + x * x))
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_us: float = Field(ge=0)
    token_us: float = Field(ge=0)
    token_key_us: float = Field(ge=0)


class EmulatedProfile(BaseModel):
    """layer_cost is multiplied by the stage's number of layers (but for step_us, which is per step); `stages` gives
    the cost of whole stages instead, by stage index. hidden_bytes: bytes per token that cross a cut. `kv_bytes`:
    bytes of cache per token and layer, for reports only: an emulated pool holds 8 bytes a token."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=128)
    layers: int = Field(ge=1, le=1024)
    vocab_size: int = Field(ge=2, le=1 << 31)
    max_tokens: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    hidden_bytes: int = Field(ge=16, le=1 << 20)
    eos_token_ids: tuple[int, ...] = ()
    layer_cost: StepCost
    stages: tuple[StepCost, ...] = ()

    def cost_of(self, stage: int, layers: int) -> StepCost:
        """Cost of a step on stage `stage` with `layers` layers."""
        if stage < len(self.stages):
            return self.stages[stage]
        return StepCost(
            step_us=self.layer_cost.step_us,
            token_us=self.layer_cost.token_us * layers,
            token_key_us=self.layer_cost.token_key_us * layers,
        )

    def fingerprint(self) -> str:
        """Equal for profiles that behave alike in everything but time."""
        facts = (self.name, str(self.layers), str(self.vocab_size), str(self.hidden_bytes))
        return digest("emulated model", (fact.encode() for fact in facts)).hex()[:32]


def is_emulated(model: str) -> bool:
    """Whether `model` names an emulated model: "emulated", "emulated:NAME" or "emulated:FILE"."""
    return model.partition(":")[0] == EMULATED_PREFIX


def load_profile(model: str) -> EmulatedProfile:
    """The profile of "emulated" (the default one), "emulated:NAME" (one that comes with the package) or
    "emulated:FILE". Raises ModelNotFoundError or CheckpointError."""
    name = model.partition(":")[2] or _DEFAULT
    builtin = resources.files("wavepp.stage.model").joinpath("profiles", f"{Path(name).name}.json")
    if "/" not in name and builtin.is_file():
        text = builtin.read_text()
    elif Path(name).is_file():
        text = Path(name).read_text()
    else:
        raise ModelNotFoundError(f"no emulation profile {name!r}: neither a file nor one of the package's")
    try:
        return EmulatedProfile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"emulation profile {name}: {where or 'JSON'}: {first['msg']}") from error
