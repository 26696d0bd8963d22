"""Layers of a model as transformers implements them: the general path, and the reference for the fast one.

The whole model is built on the meta device; layers of other stages become pass-throughs, and only the stage's own
weights are read. transformers' attention hook and its cache interface lead into the paged pools.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, LoadStateDictConfig
from transformers.utils.logging import disable_progress_bar

from wavepp.stage.model.attention.base import AttentionBackend
from wavepp.stage.model.checkpoint import Checkpoint
from wavepp.stage.model.compute import Compute
from wavepp.stage.model.errors import CheckpointError
from wavepp.stage.model.linear import apply_head
from wavepp.stage.model.pools import BatchTensors, PagedPools
from wavepp.stage.model.weights import EMBEDDING, WeightReader, owned_names

_ATTENTION: Final = "wavepp_paged"


def _paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    wave: _Wave,
    **_: Any,
) -> tuple[Tensor, None]:
    """query [1, H, rows, D]; key and value [1, Hk, gathered, D] as `_PoolCache.update` returned them."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows_first, keys, values = (t[0].transpose(0, 1) for t in (query, key, value))
    rows_first = rows_first.contiguous()
    out = torch.empty_like(rows_first)
    for span in wave.batch.plan.spans:
        rows = slice(span.row, span.row + span.length)
        seen = slice(span.key, span.key + span.keys)
        wave.attention.attend(rows_first[rows], keys[seen], values[seen], span.start, scale, out[rows])
    return out.unsqueeze(0), None


ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _paged_attention)


class _Wave:
    """What travels to the attention function through transformers' keyword arguments."""

    __slots__ = ("attention", "batch")

    def __init__(self, batch: BatchTensors, attention: AttentionBackend) -> None:
        self.batch = batch
        self.attention = attention


class _PoolCache:
    """Stands in for transformers.Cache: stores into the pools, returns what the spans index."""

    is_compileable = False

    def __init__(self, pools: PagedPools, first_layer: int) -> None:
        self._pools = pools
        self._first_layer = first_layer
        self.batch: BatchTensors | None = None

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        assert self.batch is not None
        own_key, own_value = key[0].transpose(0, 1), value[0].transpose(0, 1)
        keys, values = self._pools.write_and_read(layer_idx - self._first_layer, own_key, own_value, self.batch)
        return keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0)


class _PassThrough(nn.Module):
    """In the place of a layer that another stage owns."""

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden_states


class HfForward:
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
        config = AutoConfig.from_pretrained(checkpoint.path)
        config._attn_implementation = _ATTENTION
        build: Any = AutoModelForCausalLM.from_config
        with torch.device("meta"):
            model: Any = build(config, dtype=compute.dtype)
        base = model.model
        for layer in range(checkpoint.shape.layers):
            if not first_layer <= layer < last_layer:
                base.layers[layer] = _PassThrough()
        if first_layer > 0:
            base.embed_tokens = _PassThrough()
        if last_layer < checkpoint.shape.layers:
            base.norm, model.lm_head = _PassThrough(), _PassThrough()
        with WeightReader(checkpoint) as reader:
            self._load(model, checkpoint, reader, owned_names(checkpoint, first_layer, last_layer), compute)
            self.bytes_read = reader.bytes_read
        # Its buffers are in no checkpoint, so they are still on the meta device.
        base.rotary_emb = type(base.rotary_emb)(config=config)
        left = [name for name, t in (*model.named_parameters(), *model.named_buffers()) if t.device.type == "meta"]
        if left:
            raise CheckpointError(f"{checkpoint.path}: no weights for {', '.join(left[:4])} ({len(left)} in all)")
        self._model = model.eval()
        self._base = base
        self._attention = attention
        self._cache = _PoolCache(pools, first_layer)
        # transformers renamed the argument; both names mean the same object.
        accepted = inspect.signature(type(base).forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"

    @property
    def description(self) -> str:
        return f"transformers layers, attention {self._attention.name}"

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights in the compute dtype; a tied head counts once."""
        return sum(p.nbytes for p in self._model.parameters())

    def embed(self, ids: Tensor) -> Tensor:
        """[rows] to [rows, hidden]; first stage only."""
        embedded: Tensor = self._base.embed_tokens(ids)
        return embedded

    def layers(self, hidden: Tensor, batch: BatchTensors) -> Tensor:
        """[rows, hidden] through the stage's layers, and on the last stage through the final norm."""
        self._cache.batch = batch
        result = self._base(
            inputs_embeds=hidden.unsqueeze(0),
            attention_mask=None,
            position_ids=batch.positions.unsqueeze(0),
            use_cache=False,
            wave=_Wave(batch, self._attention),
            **{self._cache_argument: self._cache},
        )
        out: Tensor = result.last_hidden_state[0]
        return out

    def head(self, rows: Tensor) -> Tensor:
        """Logits, float32 [rows, vocab], of rows as `layers` returned them; last stage only."""
        return apply_head(rows, self._model.lm_head.weight)

    @staticmethod
    def _load(
        model: Any, checkpoint: Checkpoint, reader: WeightReader, names: tuple[str, ...], compute: Compute
    ) -> None:
        quiet: Any = disable_progress_bar
        quiet()
        mapping: Any = get_model_conversion_mapping(model)
        config = LoadStateDictConfig(
            dtype=compute.dtype,
            weight_mapping=mapping,
            device_map={"": "cpu"},
        )
        has_embedding = isinstance(model.model.embed_tokens, nn.Embedding)
        slices = {name: reader.lazy(name) for name in names if has_embedding or name != EMBEDDING}
        convert_and_load_state_dict_in_model(model, slices, config)
        if checkpoint.shape.tied_head and isinstance(model.lm_head, nn.Linear):
            if has_embedding:
                model.lm_head.weight = model.model.embed_tokens.weight
            else:
                tied = reader.tensor(EMBEDDING, compute.dtype)
                model.lm_head.weight = nn.Parameter(tied, requires_grad=False)
