"""Settings of a router."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from wavepp.core.waves.policy_factory import PolicyName
from wavepp.infra.config import DrainingConfig


class RouterConfig(DrainingConfig):
    """What `python -m wavepp.router` takes. What the model is, the stages say."""

    section: ClassVar[str] = "router"

    tokenizer: Path | None = Field(
        None, description="Directory with tokenizer.json; without it only token ids are accepted."
    )
    served_model_name: str | None = Field(None, max_length=128, description="Name for clients; the model's if absent.")
    policy: PolicyName = Field(
        "cost", description="How wave sizes are chosen: cost (by predicted time), mpu or static (by tokens)."
    )
    hop_ms: float = Field(
        1.0, ge=0, le=10_000, description="From a stage's end to the next one's start, as policy cost reckons with it."
    )
    wave_tokens_min: int | None = Field(
        None, ge=1, description="Smallest wave budget (b_min); a quarter of M if absent."
    )
    wave_requests_max: int = Field(
        128, ge=1, le=512, description="Most requests of a wave, where the stages do not take fewer."
    )
    chunk_grid: Literal["free", "fixed"] = Field(
        "free", description="fixed: cut prompts at multiples of M only, for bit-reproducible results."
    )
    prompt_tokens_max: int | None = Field(None, ge=1, description="Longest prompt; the model's limit if absent.")
    output_tokens_max: int = Field(4096, ge=1, description="Largest output budget.")
    queue_requests_max: int = Field(1024, ge=1, description="Requests that may wait for admission.")
    queue_tokens_max: int = Field(16_777_216, ge=1, description="Prompt tokens that may wait for admission.")
    running_requests_max: int = Field(256, ge=1, le=4096, description="Requests that may hold a grant.")
    attempts_max: int = Field(
        8,
        ge=1,
        le=100,
        description=(
            "How often a stage may die while it may have run a request before that fails; four times as many breaks "
            "of the pipeline in which no stage died."
        ),
    )
    request_timeout_s: float = Field(
        600.0, gt=0, le=86_400, description="Time limit of a request whose client gives none."
    )
    wave_timeout_s: float = Field(
        15.0,
        ge=1,
        le=3600,
        description="A pipeline that does no wave for so long, and for many times a step on each stage, starts over.",
    )
    ack_timeout_s: float = Field(15.0, ge=1, le=600, description="Time for all stages to acknowledge an epoch.")
    readiness_stall_s: float = Field(
        30.0, ge=1, le=3600, description="Work present and no wave done for so long: not ready."
    )
    timeline_waves_max: int = Field(4096, ge=1, le=1_000_000, description="Waves kept for `wavepp trace`.")
