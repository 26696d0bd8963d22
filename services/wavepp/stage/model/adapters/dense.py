"""Llama, Qwen2 and Qwen3: dense decoders with grouped-query attention over the whole prefix."""

from __future__ import annotations

from dataclasses import dataclass

from wavepp.stage.model.adapters.base import (
    Config,
    LayerWork,
    ModelShape,
)
from wavepp.stage.model.errors import CheckpointError, UnsupportedModelError

# Rotary variants whose frequencies do not depend on the length of the sequence. The others would make a cached key
# depend on how long its prompt later became.
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class DenseAdapter:
    """`head_dim_default`: what the family uses when the configuration is silent (None: hidden / heads)."""

    model_type: str
    head_dim_default: int | None = None
    alignment_tokens: int = 1

    def check(self, config: Config) -> None:
        """See ModelAdapter."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in _ROPE_TYPES:
            raise UnsupportedModelError(
                f"{self.model_type} with rope type {kind!r} is not supported; supported: {', '.join(_ROPE_TYPES)}"
            )
        if rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
            raise UnsupportedModelError(f"{self.model_type} with a partial rotary embedding is not supported")
        layer_types = set(config.get("layer_types") or ["full_attention"])
        if config.get("use_sliding_window") or layer_types != {"full_attention"}:
            raise UnsupportedModelError(
                f"{self.model_type} with layers of type {sorted(layer_types)} (sliding window: "
                f"{bool(config.get('use_sliding_window'))}) is not supported; only full attention is"
            )
        if config.get("quantization_config"):
            raise UnsupportedModelError(
                f"a quantized {self.model_type} checkpoint is not supported; give one in bf16, fp16 or fp32"
            )

    def shape(self, config: Config) -> ModelShape:
        """See ModelAdapter. Raises CheckpointError when a size is missing or is not a positive integer."""
        hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
        head_dim = config.get("head_dim") or self.head_dim_default or hidden // heads
        kv_heads = config.get("num_key_value_heads") or heads
        if heads % kv_heads:
            raise CheckpointError(f"config.json: {heads} heads cannot share {kv_heads} key/value heads evenly")
        return ModelShape(
            layers=_size(config, "num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=_size(config, "intermediate_size"),
            vocab=_size(config, "vocab_size"),
            max_tokens=_size(config, "max_position_embeddings"),
            tied_head=bool(config.get("tie_word_embeddings", False)),
        )

    def layer_work(self, shape: ModelShape, layer: int) -> LayerWork:
        """See ModelAdapter."""
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        weights = shape.hidden * (2 * queries + 2 * keys + 3 * shape.intermediate)
        return LayerWork(per_token=2.0 * weights, per_token_key=4.0 * queries)

    def legal_cuts(self, shape: ModelShape) -> frozenset[int]:
        """See ModelAdapter."""
        return frozenset(range(1, shape.layers))


def _size(config: Config, name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise CheckpointError(f"config.json: {name} is {value!r}, expected a positive integer")
    return value
