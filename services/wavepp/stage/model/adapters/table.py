"""Which model families are supported."""

from __future__ import annotations

from wavepp.stage.model.adapters.base import ModelAdapter
from wavepp.stage.model.adapters.dense import DenseAdapter
from wavepp.stage.model.errors import UnsupportedModelError

_ADAPTERS: dict[str, ModelAdapter] = {
    adapter.model_type: adapter
    for adapter in (DenseAdapter("llama"), DenseAdapter("qwen2"), DenseAdapter("qwen3", head_dim_default=128))
}


def supported_model_types() -> tuple[str, ...]:
    """The `model_type` values of config.json that can be served, sorted."""
    return tuple(sorted(_ADAPTERS))


def adapter_for(model_type: str) -> ModelAdapter:
    """Raises UnsupportedModelError, with the list of what is supported."""
    adapter = _ADAPTERS.get(model_type)
    if adapter is None:
        raise UnsupportedModelError(
            f"model type {model_type!r} is not supported; supported: {', '.join(supported_model_types())}"
        )
    return adapter
