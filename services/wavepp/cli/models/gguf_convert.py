"""From a GGUF file of the llama architecture to a checkpoint directory in the usual layout.

transformers can load such a file but not save what it loaded, and takes half a minute over it; its readers of the
parts are quick, so the parts are used here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHER_NAMES: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def convert_gguf(source: Path, target: Path) -> None:
    """Write configuration, weights (bf16), tokenizer and chat template of `source` into the directory `target`.

    Raises ValueError when the file is not a GGUF file of the llama architecture.
    """
    from transformers.integrations.gguf.reader import read_gguf_metadata

    metadata, names = read_gguf_metadata(str(source))
    architecture = metadata["general.architecture"]
    if architecture != "llama":
        raise ValueError(f"{source.name} is of architecture {architecture!r}; only llama can be converted")
    config = _config(metadata, tied="output.weight" not in names)
    _write_weights(source, target, config)
    _write_tokenizer(source, target)
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (target / "generation_config.json").write_text(json.dumps(special, indent=2) + "\n")


def hf_name(gguf_name: str) -> str:
    """The name of a tensor in the usual layout. Raises ValueError for an unknown one."""
    if gguf_name in _OTHER_NAMES:
        return _OTHER_NAMES[gguf_name]
    parts = gguf_name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    raise ValueError(f"unknown tensor {gguf_name!r} in a GGUF file of the llama architecture")


def _config(metadata: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    def of_model(key: str) -> Any:
        return metadata[f"llama.{key}"]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": of_model("embedding_length"),
        "intermediate_size": of_model("feed_forward_length"),
        "num_hidden_layers": of_model("block_count"),
        "num_attention_heads": of_model("attention.head_count"),
        "num_key_value_heads": of_model("attention.head_count_kv"),
        "head_dim": of_model("embedding_length") // of_model("attention.head_count"),
        "vocab_size": of_model("vocab_size"),
        "max_position_embeddings": of_model("context_length"),
        # GGUF holds it as fp32: 9.99999974e-06 was 1e-05.
        "rms_norm_eps": float(f"{of_model('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_parameters": {"rope_type": "default", "rope_theta": of_model("rope.freq_base")},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }


def _write_weights(source: Path, target: Path, config: dict[str, Any]) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers.integrations.gguf.dequant import GGML_BLOCK, dequantize
    from transformers.integrations.gguf.reader import GgufHeader, load_gguf_state_dict

    heads = {
        "self_attn.q_proj.weight": config["num_attention_heads"],
        "self_attn.k_proj.weight": config["num_key_value_heads"],
    }
    weights = {}
    header = GgufHeader.from_file(str(source))
    stored_tensors = load_gguf_state_dict(header)
    for info in header.tensors:
        name, stored = hf_name(info.name), stored_tensors[info.name]
        value = stored[...]
        if stored.ggml_type in GGML_BLOCK:
            value = dequantize(value, stored.ggml_type).view(info.shape)
        count = heads.get(name.partition(".layers.")[2].partition(".")[2])
        if count is not None:
            # GGUF interleaves the two halves of each head that rotate together; the usual layout does not.
            value = value.view(count, -1, 2, value.shape[-1]).transpose(1, 2).reshape(value.shape)
        weights[name] = value.to(torch.bfloat16).contiguous()
    file = target / "model.safetensors"
    save_file(weights, str(file), metadata={"format": "pt"})
    file.chmod(0o644)


def _write_tokenizer(source: Path, target: Path) -> None:
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        convert_gguf_tokenizer,
        get_gguf_tokenizer,
    )

    architecture, parts, options = get_gguf_tokenizer(str(source))
    tokenizer, extra = convert_gguf_tokenizer(architecture, parts)
    make: Any = PreTrainedTokenizerFast
    make(tokenizer_object=tokenizer, **{**options, **extra}).save_pretrained(str(target))
