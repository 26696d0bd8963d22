"""How many blocks a mesh gets by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wavepp.cli.local.sizing import (
    available_memory,
    cache_bytes_per_token,
    default_wave_tokens,
    emulated_pool,
    pool_for,
)

CONFIG: dict[str, Any] = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "hidden_size": 576,
    "max_position_embeddings": 8192,
}
TOKEN_BYTES = 2 * 30 * 3 * 64 * 4


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    return tmp_path


def test_the_cache_of_a_token_counts_all_layers_and_a_dtype_left_open_is_fp32() -> None:
    assert cache_bytes_per_token(CONFIG, "auto") == TOKEN_BYTES
    assert cache_bytes_per_token(CONFIG, "fp32") == TOKEN_BYTES
    assert cache_bytes_per_token(CONFIG, "bf16") == TOKEN_BYTES // 2
    without = {k: v for k, v in CONFIG.items() if k not in ("head_dim", "num_key_value_heads")}
    assert cache_bytes_per_token(without, "fp32") == 2 * 30 * 9 * 64 * 4
    assert cache_bytes_per_token({}, "fp32") == 0


def test_all_stages_together_get_a_quarter_of_what_the_weights_leave(model: Path) -> None:
    available = 4 * 10_000 * TOKEN_BYTES + 2000
    assert pool_for(model, "auto", 64, available).blocks == 10_000 // 64
    assert pool_for(model, "bf16", 64, available).blocks == 20_000 // 64


def test_no_more_than_the_limit_which_grows_with_the_models_longest_sequence(model: Path) -> None:
    assert pool_for(model, "auto", 64, 1 << 45).blocks == 65_536 // 64
    (model / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": 131_072}))
    assert pool_for(model, "auto", 64, 1 << 45).blocks == 262_144 // 64


def test_a_small_machine_gets_a_few_blocks_and_an_unknown_one_a_fixed_number(model: Path) -> None:
    assert pool_for(model, "auto", 64, 0).blocks == 16
    assert pool_for(model, "auto", 64, None).blocks == 1024
    (model / "config.json").write_text("{}")
    assert pool_for(model, "auto", 64, 1 << 40).blocks == 1024


def test_an_emulated_pool_is_large_because_it_costs_nothing() -> None:
    assert emulated_pool(64).blocks == 4096


@pytest.mark.parametrize(("block_tokens", "expected"), [(64, 512), (100, 500), (512, 512), (1000, 1000)])
def test_waves_are_a_multiple_of_the_block(block_tokens: int, expected: int) -> None:
    assert default_wave_tokens(block_tokens) == expected


def test_memory_is_the_machines_or_the_containers_whichever_is_less(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    assert available_memory(proc, cgroup) is None
    proc.mkdir()
    cgroup.mkdir()
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert available_memory(proc, cgroup) == 8000 * 1024
    (cgroup / "memory.max").write_text("max\n")
    assert available_memory(proc, cgroup) == 8000 * 1024
    (cgroup / "memory.max").write_text("1000000\n")
    (cgroup / "memory.current").write_text("400000\n")
    assert available_memory(proc, cgroup) == 600_000
