"""What a model adapter says about a family of models. Pure: reads `config.json`, imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

Config = Mapping[str, Any]


class CacheKind(StrEnum):
    """How a layer remembers: `kv` in paged blocks, `state` in a recurrent state with snapshots."""

    KV = "kv"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """One array of a layer's pool: `shape` elements for every token (kv) or for every slot (state)."""

    name: str
    shape: tuple[int, ...]

    def elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The cache of one layer."""

    kind: CacheKind
    entries: tuple[PoolEntry, ...]

    def elements(self) -> int:
        """Elements for one token (kv) or one slot (state)."""
        return sum(entry.elements() for entry in self.entries)


@dataclass(frozen=True, slots=True)
class BoundaryTensor:
    """A tensor that crosses a cut, `row_shape` elements for every token, in the compute dtype."""

    name: str
    row_shape: tuple[int, ...]


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

    def layer_cache(self, shape: ModelShape, layer: int) -> LayerCache: ...

    def layer_work(self, shape: ModelShape, layer: int) -> LayerWork: ...

    def boundary(self, shape: ModelShape, cut: int) -> tuple[BoundaryTensor, ...]:
        """What crosses a cut before layer `cut`."""
        ...

    def legal_cuts(self, shape: ModelShape) -> frozenset[int]:
        """Layers before which the model may be cut (never 0, never the number of layers)."""
        ...
