"""Tiny random models through stages, against transformers' plain forward and against themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from model_support import BLOCK_TOKENS, Pipeline, open_stages
from wavepp.core.ids import GrantId
from wavepp.stage.model import linear
from wavepp.stage.model.base import REASON_NONFINITE, Job, JobChunk, JobError, JobFailure, Sampling
from wavepp.stage.model.checkpoint import open_checkpoint
from wavepp.stage.model.weights import owned_names

FAMILIES = ("llama", "llama3", "qwen2", "qwen3")
RUNNERS = ("fast", "hf")
CUTS = (0, 2, 4)
_RANDOM = np.random.default_rng(5)
PROMPT: list[int] = _RANDOM.integers(0, 256, 200).tolist()
OTHER: list[int] = _RANDOM.integers(0, 256, 100).tolist()
TABLE = (9, 3, 17, 5, 30, 2, 21, 8, 40, 11, 13, 1, 25, 50, 51, 52)
OTHER_TABLE = (10, 4, 16, 6, 31, 20, 22)

by_family = pytest.mark.parametrize("family", FAMILIES)
by_runner = pytest.mark.parametrize("runner", RUNNERS)


def plain_logits(path: Path, prompt: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([prompt])).logits[0]
    return logits


@by_family
@by_runner
def test_two_stages_with_chunks_give_the_logits_of_the_plain_forward(
    tiny_models: dict[str, Path], family: str, runner: str
) -> None:
    expected = plain_logits(tiny_models[family], PROMPT)
    pipeline = Pipeline(open_stages(tiny_models[family], CUTS, runner=runner), record=True)
    _, logits = pipeline.prefill(PROMPT, TABLE, 64)
    assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()


@by_runner
@pytest.mark.parametrize("attention", ["whole_row", "two_part"])
def test_every_attention_kernel_gives_the_logits_of_the_plain_forward(
    tiny_models: dict[str, Path], runner: str, attention: str
) -> None:
    expected = plain_logits(tiny_models["qwen3"], PROMPT)
    stages = open_stages(tiny_models["qwen3"], CUTS, runner=runner, attention=attention)
    _, logits = Pipeline(stages, record=True).prefill(PROMPT, TABLE, 48)
    assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()


@by_family
def test_without_packed_weights_the_fast_forward_is_still_right(
    tiny_models: dict[str, Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "packing_works", lambda dtype: False)
    expected = plain_logits(tiny_models[family], PROMPT)
    stages = open_stages(tiny_models[family], CUTS)
    assert "plain linear" in stages[0].describe().compute
    _, logits = Pipeline(stages, record=True).prefill(PROMPT, TABLE, 64)
    assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()


@by_family
@by_runner
def test_a_reused_prefix_gives_the_same_bits_as_computing_it(
    tiny_models: dict[str, Path], family: str, runner: str
) -> None:
    pipeline = Pipeline(open_stages(tiny_models[family], CUTS, runner=runner), record=True)
    _, cold = pipeline.prefill(PROMPT, TABLE, 64)
    # Another grant, the first 128 tokens from the blocks that are there, the rest into other ones.
    blocks = 128 // BLOCK_TOKENS
    table = (*TABLE[:blocks], *range(53, 60))
    _, warm = pipeline.prefill(PROMPT, table, 64, start=128, grant=2)
    assert torch.equal(warm, cold[128:])


@by_family
@by_runner
def test_packed_with_another_request_gives_the_same_bits_as_alone(
    tiny_models: dict[str, Path], family: str, runner: str
) -> None:
    pipeline = Pipeline(open_stages(tiny_models[family], CUTS, runner=runner), record=True)
    assert pipeline.recorder is not None
    _, alone = pipeline.prefill(PROMPT, TABLE, 64)
    fresh = Pipeline(open_stages(tiny_models[family], CUTS, runner=runner), record=True)
    assert fresh.recorder is not None
    fresh.wave([(1, 0, PROMPT[:64], TABLE)])
    fresh.wave([(2, 0, OTHER[:32], OTHER_TABLE), (1, 64, PROMPT[64:128], TABLE)])
    assert torch.equal(fresh.recorder.logits[32:], alone[64:128])
    fresh.wave([(1, 128, PROMPT[128:192], TABLE), (2, 32, OTHER[32:37], OTHER_TABLE)])
    assert torch.equal(fresh.recorder.logits[:64], alone[128:192])


@by_runner
def test_one_decoded_token_has_the_same_bits_alone_as_among_others(tiny_models: dict[str, Path], runner: str) -> None:
    pipeline = Pipeline(open_stages(tiny_models["qwen2"], CUTS, runner=runner), record=True)
    assert pipeline.recorder is not None
    pipeline.prefill(PROMPT[:100], TABLE, 64)
    pipeline.prefill(OTHER[:50], OTHER_TABLE, 64, grant=2)
    sampling = Sampling(top_logprobs=5)
    alone = pipeline.wave([(1, 100, PROMPT[100:101], TABLE)], sampling)[-1]
    logits = pipeline.recorder.logits
    among = pipeline.wave([(2, 50, OTHER[50:90], OTHER_TABLE), (1, 100, PROMPT[100:101], TABLE)], sampling)[-1]
    assert torch.equal(pipeline.recorder.logits[-1], logits[0])
    assert among.samples[1] == alone.samples[1]


@by_family
@by_runner
def test_two_stages_give_the_same_bits_as_one(tiny_models: dict[str, Path], family: str, runner: str) -> None:
    logits = [
        Pipeline(open_stages(tiny_models[family], cuts, runner=runner), record=True).prefill(PROMPT, TABLE, 64)[1]
        for cuts in ((0, 4), (0, 2, 4), (0, 1, 2, 4))
    ]
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@by_family
@by_runner
def test_greedy_continuation_equals_generate(tiny_models: dict[str, Path], family: str, runner: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_models[family], dtype=torch.float32).eval()
    ids = torch.tensor([PROMPT])
    whole = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False)
    expected = whole[0, len(PROMPT) :]
    pipeline = Pipeline(open_stages(tiny_models[family], CUTS, runner=runner))
    assert pipeline.generate(PROMPT, TABLE, 64, 32) == expected.tolist()


@by_runner
def test_a_small_batch_writes_its_own_slots_and_no_other_live_one(tiny_models: dict[str, Path], runner: str) -> None:
    stages: list[Any] = open_stages(tiny_models["llama"], CUTS, runner=runner)
    pipeline = Pipeline(stages)
    pipeline.prefill(PROMPT[:40], TABLE, 64)
    live = 64 * BLOCK_TOKENS
    before = [pool[:live].clone() for pool in (*stages[1]._pools.keys, *stages[1]._pools.values)]
    pipeline.wave([(1, 40, PROMPT[40:41], TABLE)])
    slot = TABLE[40 // BLOCK_TOKENS] * BLOCK_TOKENS + 40 % BLOCK_TOKENS
    for old, pool in zip(before, (*stages[1]._pools.keys, *stages[1]._pools.values), strict=True):
        changed = (pool[:live] != old).flatten(1).any(1).nonzero().flatten().tolist()
        assert changed == [slot]


@by_runner
def test_a_grant_with_a_non_finite_output_is_reported_and_the_others_are_not_touched(
    tiny_models: dict[str, Path], runner: str
) -> None:
    stages: list[Any] = open_stages(tiny_models["llama"], CUTS, runner=runner)
    pipeline = Pipeline(stages)
    pipeline.prefill(PROMPT[:64], TABLE, 64)
    pipeline.prefill(OTHER[:64], OTHER_TABLE, 64, grant=2)
    chunks = [(1, 64, PROMPT[64:96], TABLE), (2, 64, OTHER[64:96], OTHER_TABLE)]
    clean = pipeline.wave(chunks, Sampling(top_logprobs=5))[-1]
    stages[0]._pools.values[1][TABLE[0] * BLOCK_TOKENS + 3] = float("nan")
    poisoned = pipeline.wave(chunks, Sampling(top_logprobs=5))
    assert poisoned[0].failed == (JobFailure(GrantId(1), REASON_NONFINITE),)
    assert poisoned[0].tensors[0][0].shape == (32, 64)
    assert poisoned[1].failed == ()
    assert poisoned[1].samples == {2: clean.samples[2]}


def test_non_finite_logits_are_reported_too(tiny_models: dict[str, Path]) -> None:
    stages: list[Any] = open_stages(tiny_models["qwen2"], (0, 4))
    stages[0]._forward._head[7] = float("inf")
    result = Pipeline(stages).wave([(1, 0, PROMPT[:32], TABLE)], Sampling())[-1]
    assert result.failed == (JobFailure(GrantId(1), REASON_NONFINITE),)
    assert result.samples == {}


@by_runner
def test_rows_of_a_grant_that_is_not_in_the_job_are_skipped(tiny_models: dict[str, Path], runner: str) -> None:
    first, last = open_stages(tiny_models["llama"], CUTS, runner=runner)
    sampling = Sampling(top_logprobs=3)
    both = Pipeline([first, last]).wave([(1, 0, PROMPT[:32], TABLE), (2, 0, OTHER[:32], OTHER_TABLE)], sampling)
    refused = last.run(Job(9, (JobChunk(2, 0, 32, OTHER_TABLE, 32, sampling),), rows_in=64, tensors=both[0].tensors))
    assert refused.samples[2] == both[1].samples[2]


@by_runner
def test_a_wave_without_chunks_passes_through(tiny_models: dict[str, Path], runner: str) -> None:
    first, last = open_stages(tiny_models["llama"], CUTS, runner=runner)
    result = first.run(Job(1, (), 0, tokens=b""))
    assert result.tensors[0][0].shape == (0, 64)
    assert last.run(Job(1, (), 0, tensors=result.tensors)).samples == {}


def test_impossible_jobs_are_refused(tiny_models: dict[str, Path]) -> None:
    first, last = open_stages(tiny_models["llama"], CUTS)
    good = JobChunk(1, 0, 4, (0,), 0)
    tokens = bytes(16)
    for chunks, rows, data in (
        ((good,), 3, tokens[:12]),
        ((JobChunk(1, 14, 4, (0,), 0),), 4, tokens),
        ((JobChunk(1, 0, 4, (64,), 0),), 4, tokens),
        ((good, JobChunk(1, 4, 4, (0,), 0)), 4, tokens),
        ((good,), 4, tokens[:8]),
        ((good,), 4, b"\xff" * 16),
        ((good,), 4, None),
    ):
        with pytest.raises(JobError):
            first.run(Job(1, chunks, rows, data))
    with pytest.raises(JobError, match="missing"):
        last.run(Job(1, (good,), 4))
    spec, data = first.run(Job(1, (good,), 4, tokens)).tensors[0]
    with pytest.raises(JobError, match="expected"):
        last.run(Job(1, (good,), 5, tensors=[(spec, data)]))


def test_a_closed_model_refuses_to_run(tiny_models: dict[str, Path]) -> None:
    (stage,) = open_stages(tiny_models["llama"], (0, 4))
    stage.close()
    assert stage.memory().pools_bytes == stage.memory().weights_bytes == 0
    with pytest.raises(JobError, match="closed"):
        stage.run(Job(1, (JobChunk(1, 0, 1, (0,), 0),), 1, bytes(4)))


@by_runner
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_stage_reads_and_holds_its_own_weights_only(tiny_models: dict[str, Path], family: str, runner: str) -> None:
    checkpoint = open_checkpoint(tiny_models[family])
    sizes = {name: entry.bytes_on_disk for name, entry in checkpoint.entries.items()}
    embedding = sizes["model.embed_tokens.weight"]
    stages: list[Any] = open_stages(tiny_models[family], CUTS, runner=runner)
    for stage, first in zip(stages, (0, 2), strict=True):
        names = owned_names(checkpoint, first, first + 2)
        layers = {name.split(".")[2] for name in names if ".layers." in name}
        assert layers == {str(first), str(first + 1)}
        owned = sum(sizes[name] for name in names)
        assert stage._forward.bytes_read == owned
        assert stage.memory().weights_bytes == owned
    whole = sum(sizes.values())
    twice = embedding if family == "llama" else 0
    assert sum(s._forward.bytes_read for s in stages) == whole + twice
