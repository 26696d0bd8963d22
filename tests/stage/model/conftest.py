"""Checkpoints that the tests share: tiny random ones of every family, and SmolLM2."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from wavepp.cli.models.fetch import fetch_model

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 256,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
    "eos_token_id": None,
}


def write_tiny(directory: Path, config: Any) -> Path:
    """A random checkpoint whose norms and biases are not the trivial ones that initialisation gives."""
    torch.manual_seed(20)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.1)
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By model type; llama with a tied head, qwen2 with biases, qwen3 with norms on queries and keys; and llama
    with the rotary scaling of Llama 3."""
    root = tmp_path_factory.mktemp("models")
    scaled = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    return {
        "llama": write_tiny(root / "llama", LlamaConfig(**_SIZES, tie_word_embeddings=True)),
        "llama3": write_tiny(root / "llama3", LlamaConfig(**_SIZES, rope_parameters=scaled)),
        "qwen2": write_tiny(root / "qwen2", Qwen2Config(**_SIZES)),
        "qwen3": write_tiny(root / "qwen3", Qwen3Config(**_SIZES)),
    }


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, fetched once into the working tree's ignored cache."""
    return fetch_model("smollm2", Path(__file__).parents[3] / ".wavepp" / "models")
