"""What a stage publishes of itself in etcd, and what makes a set of stages one pipeline."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wavepp.core.errors import WaveppError
from wavepp.core.limits import STAGES_MAX


class RegistrationError(WaveppError):
    """A registration that cannot be read, or stages that do not fit together."""


class StageRegistration(BaseModel):
    """One stage. `last_layer` is exclusive. Two stages are of one pipeline only if `shared_facts` are equal."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    stage: int = Field(ge=0, lt=STAGES_MAX)
    stages: int = Field(ge=1, le=STAGES_MAX)
    incarnation: str = Field(min_length=1, max_length=128)
    address: str = Field(min_length=1, max_length=260)
    link_address: str = Field(max_length=300)
    first_layer: int = Field(ge=0)
    last_layer: int = Field(ge=1)
    layers_total: int = Field(ge=1)
    model_name: str
    model_type: str
    fingerprint: str
    vocab_size: int = Field(ge=1)
    tokens_max: int = Field(ge=1)
    dtype: str
    cache_dtype: str
    block_tokens: int = Field(ge=1)
    alignment_tokens: int = Field(ge=1)
    wave_tokens_max: int = Field(ge=1)
    wave_requests_max: int = Field(ge=1)
    eos_token_ids: tuple[int, ...]
    recurrent: bool
    emulated: bool
    kv_blocks: int = Field(ge=1)
    state_slots: int = Field(ge=0)
    snapshot_slots: int = Field(ge=0)

    @property
    def shared_facts(self) -> dict[str, object]:
        """What every stage of a pipeline must agree on, by name."""
        names = (
            "stages",
            "layers_total",
            "model_name",
            "fingerprint",
            "vocab_size",
            "tokens_max",
            "cache_dtype",
            "block_tokens",
            "wave_tokens_max",
            "wave_requests_max",
            "emulated",
        )
        return {name: getattr(self, name) for name in names}

    def encode(self) -> bytes:
        """As it stands in etcd."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, value: bytes) -> StageRegistration:
        """Raises RegistrationError when this is not a registration."""
        try:
            return cls.model_validate_json(value)
        except ValidationError as error:
            raise RegistrationError(f"not a stage's registration: {error.errors()[0]['msg']}") from error


def check_fit(one: StageRegistration, other: StageRegistration) -> None:
    """Raise RegistrationError, naming both sides, unless the two can be stages of one pipeline."""
    mine, theirs = one.shared_facts, other.shared_facts
    for name, value in mine.items():
        if theirs[name] != value:
            raise RegistrationError(
                f"stage {one.stage} has {name} {value!r}, stage {other.stage} has {theirs[name]!r}: start all stages "
                "of a pipeline with the same model and options"
            )
    before, after = sorted((one, other), key=lambda r: r.stage)
    if after.stage == before.stage + 1 and before.last_layer != after.first_layer:
        raise RegistrationError(
            f"stage {before.stage} ends at layer {before.last_layer}, stage {after.stage} begins at layer "
            f"{after.first_layer}: the layers of a pipeline must follow each other"
        )


def in_order(stages: Mapping[int, StageRegistration]) -> list[StageRegistration] | None:
    """All stages of the pipeline, first to last; None while one is missing (or one too many is there)."""
    if not stages or sorted(stages) != list(range(next(iter(stages.values())).stages)):
        return None
    return [stages[i] for i in range(len(stages))]


def check_pipeline(stages: Sequence[StageRegistration]) -> None:
    """Raise RegistrationError unless these are all stages of one pipeline, in order."""
    for before, after in itertools.pairwise(stages):
        check_fit(before, after)
    first, last = stages[0], stages[-1]
    if first.first_layer != 0 or last.last_layer != last.layers_total:
        raise RegistrationError(
            f"the stages hold layers [{first.first_layer}, {last.last_layer}) of {last.layers_total}: "
            "the first must begin at 0 and the last must end at the model's end"
        )
