"""A real model with real text: SmolLM2-135M-Instruct, 1,045 tokens."""

from __future__ import annotations

from pathlib import Path
from pydoc_data import topics

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from model_support import Pipeline, open_stages
from wavepp.stage.model.factory import plan_model

TOKENS = 1045
CHUNK = 256
TABLE = tuple(range(3, 20))


@pytest.fixture(scope="module")
def prompt(smollm2: Path) -> list[int]:
    text = "\n".join(topics.topics[name] for name in ("assignment", "execmodel"))
    ids: list[int] = AutoTokenizer.from_pretrained(smollm2)(text)["input_ids"]
    assert len(ids) > TOKENS
    return ids[:TOKENS]


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> torch.nn.Module:
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    return model


@pytest.fixture(scope="module")
def expected(reference: torch.nn.Module, prompt: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = reference(torch.tensor([prompt])).logits[0]
    return logits


def test_fp32_logits_and_greedy_continuation_equal_transformers(
    smollm2: Path, prompt: list[int], reference: torch.nn.Module, expected: torch.Tensor
) -> None:
    spans = plan_model(str(smollm2), 2).spans
    cuts = (0, spans[0][1], spans[1][1])
    pipeline = Pipeline(open_stages(smollm2, cuts, blocks=40, block_tokens=64), record=True)
    _, cold = pipeline.prefill(prompt, TABLE, CHUNK)
    assert (cold - expected).abs().max() <= 1e-5 * expected.abs().max()

    _, warm = pipeline.prefill(prompt, (*TABLE[:12], *range(30, 36)), CHUNK, start=768, grant=2)
    assert torch.equal(warm, cold[768:])

    short = prompt[:256]
    continued = reference.generate(torch.tensor([short]), max_new_tokens=32, do_sample=False)  # type: ignore[operator]
    plain = Pipeline(pipeline.stages)
    assert plain.generate(short, TABLE, CHUNK, 32) == continued[0, len(short) :].tolist()


def test_bf16_is_no_further_from_fp32_than_transformers_bf16(
    smollm2: Path, prompt: list[int], expected: torch.Tensor
) -> None:
    prompt, expected = prompt[:512], expected[:512]
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.bfloat16).eval()
    with torch.inference_mode():
        own = (model(torch.tensor([prompt])).logits[0].float() - expected).abs()
    del model
    for runner, attention in (("fast", "auto"), ("fast", "whole_row"), ("hf", "auto")):
        stages = open_stages(
            smollm2, (0, 15, 30), runner=runner, dtype="bf16", attention=attention, blocks=20, block_tokens=64
        )
        error = (Pipeline(stages, record=True).prefill(prompt, TABLE, CHUNK)[1] - expected).abs()
        assert error.mean() <= 1.5 * own.mean(), (runner, attention)
        assert error.square().mean() <= 1.5**2 * own.square().mean(), (runner, attention)


def test_in_fp32_packing_and_the_stage_split_change_no_bit(smollm2: Path, prompt: list[int]) -> None:
    first, second, other = prompt[:CHUNK], prompt[CHUNK : 2 * CHUNK], prompt[600:664]
    other_table = (25, 26)

    one = Pipeline(open_stages(smollm2, (0, 30), blocks=40, block_tokens=64), record=True)
    two = Pipeline(open_stages(smollm2, (0, 15, 30), blocks=40, block_tokens=64), record=True)
    assert one.recorder is not None
    assert two.recorder is not None
    _, whole = one.prefill([*first, *second], TABLE, CHUNK)
    _, split = two.prefill([*first, *second], TABLE, CHUNK)
    assert torch.equal(split, whole), "two stages against one"

    two.wave([(2, 0, first, range(27, 35))])
    two.wave([(3, 0, other, other_table), (2, CHUNK, second, range(27, 35))])
    assert torch.equal(two.recorder.logits[len(other) :], split[CHUNK:]), "packed against alone"
