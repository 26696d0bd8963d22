"""What the router derives from the stages' registrations."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavepp.infra.registration import StageRegistration
from wavepp.router.config import RouterConfig
from wavepp.router.leadership import endpoint_alignment, served_model, wave_tokens_min


def stage(index: int, **changes: object) -> StageRegistration:
    facts: dict[str, object] = {
        "stage": index,
        "stages": 2,
        "incarnation": "i",
        "address": "127.0.0.1:1",
        "link_address": "",
        "first_layer": index,
        "last_layer": index + 1,
        "layers_total": 2,
        "model_name": "m",
        "model_type": "llama",
        "fingerprint": "f",
        "vocab_size": 100,
        "tokens_max": 1000,
        "dtype": "float32",
        "cache_dtype": "float32",
        "block_tokens": 32,
        "alignment_tokens": 32,
        "wave_tokens_max": 192,
        "eos_token_ids": (1, 2),
        "recurrent": False,
        "emulated": False,
        "kv_blocks": 40 - 10 * index,
        "state_slots": 0,
        "snapshot_slots": 0,
    }
    return StageRegistration.model_validate(facts | changes)


def config(**values: object) -> RouterConfig:
    return RouterConfig(run_dir=Path(), **values)  # type: ignore[arg-type]


def test_endpoints_align_to_what_every_stage_needs() -> None:
    assert endpoint_alignment(config(), [stage(0), stage(1, alignment_tokens=64)]) == 64


def test_on_a_fixed_grid_endpoints_lie_on_the_grid_too() -> None:
    stages = [stage(0), stage(1, alignment_tokens=64)]
    assert endpoint_alignment(config(chunk_grid="fixed"), stages) == 192


def test_the_smallest_pool_and_its_stage_limit_a_request() -> None:
    model = served_model(config(), [stage(0), stage(1)])
    assert (model.kv_blocks_min, model.kv_blocks_min_stage) == (30, 1)


@pytest.mark.parametrize(("limit", "expected"), [(None, 1000), (100, 100), (5000, 1000)])
def test_a_configured_prompt_limit_can_only_lower_the_models(limit: int | None, expected: int) -> None:
    assert served_model(config(prompt_tokens_max=limit), [stage(0), stage(1)]).prompt_tokens_max == expected


def test_the_smallest_wave_is_a_quarter_of_the_largest_unless_it_is_given() -> None:
    stages = [stage(0), stage(1)]
    assert wave_tokens_min(config(), stages) == 48
    assert wave_tokens_min(config(wave_tokens_min=16), stages) == 16
    assert wave_tokens_min(config(), [stage(0, wave_tokens_max=64), stage(1, wave_tokens_max=64)]) == 32, "a block"
