"""Settings of a stage worker."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from wavepp.core.limits import STAGES_MAX
from wavepp.infra.config import DrainingConfig
from wavepp.infra.config_fields import WILDCARD_HOSTS, Host


class StageConfig(DrainingConfig):
    """What `python -m wavepp.stage` takes."""

    section: ClassVar[str] = "stage"

    stage: int = Field(..., ge=0, lt=STAGES_MAX, description="Index of this stage, from 0.")
    stages: int = Field(..., ge=1, le=STAGES_MAX, description="Number of stages of the pipeline (P).")
    model: str = Field(..., min_length=1, description="Directory of a checkpoint, or emulated[:PROFILE].")
    layers: tuple[int, ...] | None = Field(
        None, description="Layers per stage, one number for every stage; balanced by cost if absent."
    )
    blocks: int = Field(1024, ge=2, description="Blocks of the kv pool.")
    block_tokens: int = Field(64, ge=1, le=4096, description="Tokens a block (B).")
    wave_tokens_max: int = Field(512, ge=1, description="Most prefill tokens of a wave (M); the same on all stages.")
    wave_requests_max: int = Field(128, ge=1, le=512, description="Most requests of a wave; the same on all stages.")
    dtype: Literal["auto", "bf16", "fp32"] = Field("auto", description="auto: bf16 where the CPU has it.")
    device: str = Field("cpu", description="Device to run on.")
    threads: int = Field(1, ge=1, le=256, description="Threads of the model's operations.")
    runner: Literal["auto", "fast", "hf"] = Field("auto", description="Own forward, or transformers' layers.")
    precision: Literal["auto", "highest", "high", "medium"] = Field("auto", description="Of fp32 products.")
    link: Literal["ucx", "socket"] = Field("ucx", description="What carries activations.")
    ucx_profile: Literal["tcp", "shm"] = Field("tcp", description="shm: shared memory within one machine.")
    link_host: Host | None = Field(None, description="Address for links; that of advertise_address if absent.")
    link_port: int = Field(0, ge=0, le=65535, description="Port for links; 0 takes a free one.")
    step_timeout_s: float = Field(
        300.0,
        ge=1,
        le=86_400,
        description="A step that is larger than all before it, or the first, may take so long; then the stage ends.",
    )
    models_dir: Path | None = Field(None, description="Where `wavepp model fetch` keeps checkpoints.")
    validate_invariants: bool = Field(False, description="Check every invariant after every event (slow).")

    @property
    def links_at(self) -> str:
        """The host on which links are listened for, and which is published for them."""
        return self.link_host or self.advertised_host

    @property
    def listens(self) -> tuple[tuple[str, int], ...]:
        """With the port for links, which the first stage does not need."""
        return (*super().listens, *(((self.links_at, self.link_port),) if self.stage else ()))

    @model_validator(mode="after")
    def _check_stage(self) -> Self:
        if self.stage >= self.stages:
            raise ValueError(f"stage {self.stage} of {self.stages}: the last one is {self.stages - 1}")
        if self.link_host is not None and self.link_host in WILDCARD_HOSTS:
            raise ValueError(
                f"link_host {self.link_host!r} is no address to connect to; give one of this machine, or leave it out "
                "for that of advertise_address"
            )
        if self.wave_tokens_max % self.block_tokens:
            raise ValueError(
                f"wave_tokens_max {self.wave_tokens_max} is no multiple of block_tokens {self.block_tokens}"
            )
        return self
