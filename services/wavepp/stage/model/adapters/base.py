"""What a model adapter says about a family of models. Pure: reads `config.json`, imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes that planning and memory accounting need."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_tokens: int
    tied_head: bool


@dataclass(frozen=True, slots=True)
class LayerWork:
    """Floating point operations of one layer: `per_token`, and `per_token_key` for every key that a token sees."""

    per_token: float
    per_token_key: float


class ModelAdapter(Protocol):
    """One per `model_type`."""

    @property
    def model_type(self) -> str: ...

    @property
    def alignment_tokens(self) -> int:
        """Chunk ends must be multiples of it (1 for a dense model, 64 where a layer is recurrent)."""
        ...

    def check(self, config: Config) -> None:
        """Raises UnsupportedModelError when the configuration uses something that is not supported."""
        ...

    def shape(self, config: Config) -> ModelShape: ...

    def layer_work(self, shape: ModelShape, layer: int) -> LayerWork: ...

    def legal_cuts(self, shape: ModelShape) -> frozenset[int]:
        """Layers before which the model may be cut (never 0, never the number of layers)."""
        ...
