"""The layers of Llama-shaped models (llama, qwen2, qwen3) in few, large torch operations.

Query, key and value projections are one product, the weights are laid out once for oneDNN, and activations, gates and
residuals ride on the products.
The transformers path (`hf.py`) is the reference; this one exists because it is faster.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from wavepp.stage.model.attention.base import AttentionBackend
from wavepp.stage.model.checkpoint import Checkpoint
from wavepp.stage.model.compute import Compute
from wavepp.stage.model.linear import Linear, apply_head
from wavepp.stage.model.pools import BatchTensors, PagedPools
from wavepp.stage.model.rope import Rope, paired, rotate
from wavepp.stage.model.weights import EMBEDDING, HEAD, WeightReader


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate: Linear
    up: Linear
    down: Linear


class LlamaForward:
    """See runner.Forward."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        first_layer: int,
        last_layer: int,
        compute: Compute,
        pools: PagedPools,
        attention: AttentionBackend,
    ) -> None:
        self._shape = checkpoint.shape
        self._dtype = compute.dtype
        self._pools = pools
        self._attention = attention
        self._eps = float(checkpoint.config.get("rms_norm_eps", 1e-6))
        self._scale = self._shape.head_dim**-0.5
        self._rope = Rope(checkpoint)
        is_first, is_last = first_layer == 0, last_layer == self._shape.layers
        with WeightReader(checkpoint) as reader:
            self._layers = [self._load_layer(reader, layer) for layer in range(first_layer, last_layer)]
            table = (self._shape.vocab, self._shape.hidden)
            tied = self._shape.tied_head
            embedding = reader.tensor(EMBEDDING, self._dtype, table) if is_first or (is_last and tied) else None
            if embedding is not None:
                # Its own memory: a view would keep the whole file mapped, and all its pages counted as ours.
                embedding = embedding.clone()
            self._embedding = embedding if is_first else None
            self._norm = self._vector(reader, "model.norm.weight", self._shape.hidden) if is_last else None
            self._head = None
            if is_last:
                self._head = embedding if tied else reader.tensor(HEAD, self._dtype, table).clone()
            self.bytes_read = reader.bytes_read

    @property
    def description(self) -> str:
        packed = "packed" if all(layer.qkv.packed for layer in self._layers) else "plain"
        return f"fast ({packed} linear, attention {self._attention.name})"

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights in the compute dtype."""
        held = [t for t in (self._norm, self._embedding) if t is not None]
        if self._head is not None and self._head is not self._embedding:
            held.append(self._head)
        total = sum(t.nbytes for t in held)
        for layer in self._layers:
            total += sum(x.nbytes for x in (layer.qkv, layer.output, layer.gate, layer.up, layer.down))
            norms = (layer.input_norm, layer.mlp_norm, layer.query_norm, layer.key_norm)
            total += sum(n.nbytes for n in norms if n is not None)
        return total

    def embed(self, ids: Tensor) -> Tensor:
        """[rows] to [rows, hidden]; first stage only."""
        assert self._embedding is not None
        return F.embedding(ids, self._embedding)

    def layers(self, hidden: Tensor, batch: BatchTensors) -> Tensor:
        """[rows, hidden] through the stage's layers."""
        shape, eps = self._shape, self._eps
        rotation = self._rope.rotation(batch.positions)
        attended = torch.empty(hidden.shape[0], shape.heads, shape.head_dim, dtype=self._dtype)
        for index, layer in enumerate(self._layers):
            self._attend(index, layer, layer.qkv(rms_norm(hidden, layer.input_norm, eps)), rotation, batch, attended)
            hidden = layer.output.plus(attended.view(hidden.shape[0], -1), hidden)
            normed = rms_norm(hidden, layer.mlp_norm, eps)
            hidden = layer.down.plus(layer.up.times(normed, layer.gate.silu(normed)), hidden)
        return hidden

    def head(self, rows: Tensor) -> Tensor:
        """Logits, float32 [rows, vocab], of rows as `layers` returned them; last stage only."""
        assert self._norm is not None
        assert self._head is not None
        return apply_head(rms_norm(rows, self._norm, self._eps), self._head)

    def _attend(
        self,
        index: int,
        layer: _Layer,
        projected: Tensor,
        rotation: Tensor,
        batch: BatchTensors,
        out: Tensor,
    ) -> None:
        """Rotate, store and attend: projected [rows, (H + 2 Hk) * D] into out [rows, H, D]."""
        heads, kv_heads = self._shape.heads, self._shape.kv_heads
        parts = projected.view(projected.shape[0], heads + 2 * kv_heads, self._shape.head_dim)
        rotated = parts[:, : heads + kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            rotated = torch.cat(
                (
                    rms_norm(parts[:, :heads], layer.query_norm, self._eps),
                    rms_norm(parts[:, heads : heads + kv_heads], layer.key_norm, self._eps),
                ),
                dim=1,
            )
        rotated = rotate(rotated, rotation)
        keys, values = self._pools.write_and_read(index, rotated[:, heads:], parts[:, heads + kv_heads :], batch)
        for span in batch.plan.spans:
            rows = slice(span.row, span.row + span.length)
            seen = slice(span.key, span.key + span.keys)
            self._attention.attend(rotated[rows, :heads], keys[seen], values[seen], span.start, self._scale, out[rows])

    def _load_layer(self, reader: WeightReader, index: int) -> _Layer:
        shape, base = self._shape, f"model.layers.{index}."
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        attention, mlp = base + "self_attn.", base + "mlp."

        def read(name: str, *sizes: int) -> Tensor:
            tensor = reader.tensor(name, self._dtype, sizes)
            rotates = name.startswith((attention + "q_", attention + "k_"))
            return paired(tensor, shape.head_dim) if rotates else tensor

        def linear(names: tuple[str, ...], sizes: tuple[int, ...], inputs: int) -> Linear:
            named = list(zip(names, sizes, strict=True))
            weight = torch.cat([read(f"{name}.weight", size, inputs) for name, size in named])
            biases = [read(f"{name}.bias", size) for name, size in named if reader.has(f"{name}.bias")]
            return Linear(weight, torch.cat(biases) if biases else None)

        query_norm, key_norm = attention + "q_norm.weight", attention + "k_norm.weight"
        has_norm = reader.has(query_norm)
        return _Layer(
            input_norm=self._vector(reader, base + "input_layernorm.weight", shape.hidden),
            qkv=linear(
                tuple(attention + n for n in ("q_proj", "k_proj", "v_proj")), (queries, keys, keys), shape.hidden
            ),
            query_norm=read(query_norm, shape.head_dim).clone() if has_norm else None,
            key_norm=read(key_norm, shape.head_dim).clone() if has_norm else None,
            output=linear((attention + "o_proj",), (shape.hidden,), queries),
            mlp_norm=self._vector(reader, base + "post_attention_layernorm.weight", shape.hidden),
            gate=linear((mlp + "gate_proj",), (shape.intermediate,), shape.hidden),
            up=linear((mlp + "up_proj",), (shape.intermediate,), shape.hidden),
            down=linear((mlp + "down_proj",), (shape.hidden,), shape.intermediate),
        )

    def _vector(self, reader: WeightReader, name: str, size: int) -> Tensor:
        return reader.tensor(name, self._dtype, (size,)).clone()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last dimension, rounded where transformers rounds.

    torch's own does the same in more passes over memory, and took twice as long or more.
    """
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = norm.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
    return torch.mul(wide, scale).to(x.dtype).mul_(weight)
