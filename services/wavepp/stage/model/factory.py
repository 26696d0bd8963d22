"""From what a stage is configured with to a model that runs. torch is imported only where it is used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wavepp.profiles.profile import emulated_profile, is_emulated
from wavepp.stage.model.base import StageModel
from wavepp.stage.model.checkpoint import Checkpoint, open_checkpoint
from wavepp.stage.model.emulated import EmulatedStage, fingerprint, model_name
from wavepp.stage.model.errors import ModelError
from wavepp.stage.model.split import Span, explicit_split, split_layers, split_model

RunnerKind = Literal["auto", "fast", "hf"]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """model: directory of a checkpoint, or "emulated[:PROFILE]". stage: index, of `stages`; what an emulated one
    costs goes by them.

    Layers [first_layer, last_layer). blocks: of block_tokens tokens each, per layer. dtype: auto, bf16 or fp32.
    runner: "fast" (own forward), "hf" (transformers' layers) or "auto". precision: of fp32 products, "auto" or what
    torch.set_float32_matmul_precision takes.
    """

    model: str
    stage: int
    stages: int
    first_layer: int
    last_layer: int
    blocks: int
    block_tokens: int = 64
    dtype: str = "auto"
    device: str = "cpu"
    runner: RunnerKind = "auto"
    attention: str = "auto"
    precision: str = "auto"
    threads: int = 1
    wave_tokens_max: int = 1024
    models_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What is known about a model before any stage loads it. tokenizer: where it is, None when emulated."""

    name: str
    layers: int
    vocab_size: int
    max_tokens: int
    eos_token_ids: tuple[int, ...]
    fingerprint: str
    spans: tuple[Span, ...]
    tokenizer: Path | None


def plan_model(
    model: str, stages: int, split: tuple[int, ...] | None = None, models_dir: Path | None = None
) -> ModelPlan:
    """Check a model and deal its layers out to `stages` stages (`split`: layers per stage, given by hand).

    Reads configuration and headers only; imports no torch. Raises ModelError or ProfileError.
    """
    if split is not None and len(split) != stages:
        raise ModelError(f"layer split names {len(split)} stages, but {stages} are asked for")
    if is_emulated(model):
        profile = emulated_profile(model)
        facts = profile.emulated()
        return ModelPlan(
            name=model_name(profile),
            layers=facts.layers,
            vocab_size=facts.vocab_size,
            max_tokens=facts.max_tokens,
            eos_token_ids=facts.eos_token_ids,
            fingerprint=fingerprint(profile),
            spans=explicit_split(split, facts.layers) if split else split_layers([1.0] * facts.layers, stages),
            tokenizer=None,
        )
    checkpoint = open_checkpoint(model, models_dir)
    shape, adapter = checkpoint.shape, checkpoint.adapter
    return ModelPlan(
        name=checkpoint.name,
        layers=shape.layers,
        vocab_size=shape.vocab,
        max_tokens=shape.max_tokens,
        eos_token_ids=checkpoint.eos_token_ids,
        fingerprint=checkpoint.fingerprint,
        spans=(
            explicit_split(split, shape.layers, adapter.legal_cuts(shape))
            if split
            else split_model(shape, adapter, stages)
        ),
        tokenizer=checkpoint.path,
    )


def open_stage_model(options: ModelOptions) -> StageModel:
    """Load a stage's part of a model. Sets torch's threads and precision for this process. Raises ModelError or
    ProfileError."""
    if is_emulated(options.model):
        profile = emulated_profile(options.model)
        _check_layers(options, profile.emulated().layers)
        return EmulatedStage(
            profile,
            stage=options.stage,
            stages=options.stages,
            first_layer=options.first_layer,
            last_layer=options.last_layer,
            blocks=options.blocks,
            block_tokens=options.block_tokens,
        )
    checkpoint = open_checkpoint(options.model, options.models_dir)
    _check_layers(options, checkpoint.shape.layers)
    return _open_torch_stage(options, checkpoint)


def _check_layers(options: ModelOptions, layers: int) -> None:
    if not 0 <= options.first_layer < options.last_layer <= layers:
        raise ModelError(
            f"layers [{options.first_layer}, {options.last_layer}) are not part of a model of {layers} layers"
        )
    if options.blocks < 1 or options.block_tokens < 1:
        raise ModelError(
            f"a pool of {options.blocks} blocks of {options.block_tokens} tokens is none; both must be positive"
        )


def _open_torch_stage(options: ModelOptions, checkpoint: Checkpoint) -> StageModel:
    import torch

    from wavepp.stage.model.attention.select import select_attention
    from wavepp.stage.model.compute import choose_compute, configure_process, return_freed_memory
    from wavepp.stage.model.pools import PagedPools
    from wavepp.stage.model.runner import Forward, TorchStage

    if options.device != "cpu":
        raise ModelError(f"device {options.device!r} is not supported; only cpu is")
    compute = choose_compute(options.dtype)
    configure_process(compute, options.threads, options.precision)
    shape = checkpoint.shape
    attention = select_attention(
        compute.dtype, shape.head_dim, torch.device("cpu"), amx=compute.amx, name=options.attention
    )
    pools = PagedPools(
        options.last_layer - options.first_layer,
        options.blocks,
        options.block_tokens,
        shape.kv_heads,
        shape.head_dim,
        compute.dtype,
    )
    fast = checkpoint.config.get("hidden_act", "silu") == "silu"
    if options.runner == "fast" and not fast:
        raise ModelError("this model's activation is not silu; the fast runner needs it: use the hf runner")
    forward: Forward
    parts = (checkpoint, options.first_layer, options.last_layer, compute, pools, attention)
    if options.runner == "hf" or not fast:
        from wavepp.stage.model.hf import HfForward

        forward = HfForward(*parts)
    else:
        from wavepp.stage.model.llama_forward import LlamaForward

        forward = LlamaForward(*parts)
    return_freed_memory()
    return TorchStage(
        checkpoint,
        options.first_layer,
        options.last_layer,
        compute,
        pools,
        forward,
        options.wave_tokens_max,
    )
