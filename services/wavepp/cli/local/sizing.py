"""How many blocks a local mesh gets when nobody says it.

The rule: all stages of one machine together get a quarter of the memory that is available once the weights are loaded,
at most 65,536 tokens or twice the model's longest sequence (whichever is more), at least 16 blocks. Every stage gets
the same number of blocks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SHARE: Final = 0.25
TOKENS_MAX: Final = 65_536
BLOCKS_MIN: Final = 16
BLOCKS_FALLBACK: Final = 1024
EMULATED_TOKENS: Final = 262_144
"""An emulated pool holds 8 bytes a token."""

WAVE_TOKENS: Final = 512
"""M for a small model on CPU cores: a step takes some hundred milliseconds, so a few requests fill the pipeline, and
products of so many rows run at nearly full speed."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A number of blocks for every stage, and the reason in words."""

    blocks: int
    reason: str


def default_wave_tokens(block_tokens: int) -> int:
    """M: 512, made a multiple of the block size."""
    return max(WAVE_TOKENS // block_tokens * block_tokens, block_tokens)


def emulated_pool(block_tokens: int) -> Pool:
    """For an emulated model."""
    return Pool(max(BLOCKS_MIN, EMULATED_TOKENS // block_tokens), f"{EMULATED_TOKENS:,} tokens, emulated")


def pool_for(model_dir: Path, dtype: str, block_tokens: int, available_bytes: int | None) -> Pool:
    """For the checkpoint in `model_dir`. `available_bytes`: of the machine now; None when unknown."""
    config = _read_config(model_dir)
    token_bytes = cache_bytes_per_token(config, dtype)
    if not token_bytes or available_bytes is None:
        return Pool(BLOCKS_FALLBACK, "the model's cache size or this machine's memory is not known")
    tokens_max = max(TOKENS_MAX, 2 * int(config.get("max_position_embeddings") or 0))
    weights = sum(file.stat().st_size for file in model_dir.glob("*.safetensors"))
    left = max(0, available_bytes - weights * (1 if dtype == "bf16" else 2))
    fitting = int(left * SHARE) // token_bytes
    blocks = max(BLOCKS_MIN, min(fitting, tokens_max) // block_tokens)
    why = "the limit" if fitting >= tokens_max else "a quarter of the memory left"
    size_mb = blocks * block_tokens * token_bytes / 1e6
    return Pool(blocks, f"{blocks * block_tokens:,} tokens, {why}; at most {size_mb:,.0f} MB for all stages")


def cache_bytes_per_token(config: dict[str, Any], dtype: str) -> int:
    """Of all layers together; 0 when the configuration does not say it. dtype "auto" counts as fp32."""
    try:
        heads = int(config["num_attention_heads"])
        head_dim = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
        kv_heads = int(config.get("num_key_value_heads") or heads)
        layers = int(config["num_hidden_layers"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return 0
    return 2 * layers * kv_heads * head_dim * (2 if dtype == "bf16" else 4)


def available_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that processes started now can have: of the machine, or of this container if that is less."""
    found = []
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        pass
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        if limit != "max":
            found.append(max(0, int(limit) - int((cgroup / "memory.current").read_text())))
    except (OSError, ValueError):
        pass
    return min(found, default=None)


def _read_config(model_dir: Path) -> dict[str, Any]:
    try:
        found = json.loads((model_dir / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
