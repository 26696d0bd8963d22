"""Finding and checking checkpoints, and what a user reads when one cannot be served."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wavepp.stage.model.checkpoint import open_checkpoint
from wavepp.stage.model.errors import CheckpointError, ModelError, ModelNotFoundError, UnsupportedModelError
from wavepp.stage.model.factory import ModelOptions, open_stage_model, plan_model


@pytest.fixture
def copy(tiny_models: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_models["qwen2"], tmp_path / "model"))


def change_config(path: Path, **values: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | values))


def test_a_checkpoint_is_found_by_path_and_by_name(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(tiny_models["llama"], tmp_path / "owner--name")
    by_name = open_checkpoint("owner/name", tmp_path)
    assert by_name.path == tmp_path / "owner--name"
    by_path = open_checkpoint(tiny_models["llama"])
    assert by_path.fingerprint == by_name.fingerprint
    assert (by_path.shape.layers, by_path.shape.kv_heads, by_path.shape.head_dim) == (4, 2, 32)
    assert by_path.shape.tied_head


def test_a_missing_model_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"found no config\.json in .*wavepp model fetch"):
        open_checkpoint("nobody/nothing", tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "gpt2"}, "'gpt2' is not supported; supported: llama, qwen2, qwen3"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope type 'dynamic'"),
        ({"use_sliding_window": True}, "only full attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "only full attention"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized"),
    ],
)
def test_an_unsupported_model_is_refused(copy: Path, values: dict[str, Any], message: str) -> None:
    change_config(copy, **values)
    with pytest.raises(UnsupportedModelError, match=message):
        open_checkpoint(copy)


def test_damaged_checkpoints_are_refused(copy: Path) -> None:
    weights = copy / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-10])
    with pytest.raises(CheckpointError, match="its header says"):
        open_checkpoint(copy)
    weights.write_bytes(b"\xff" * 100)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        open_checkpoint(copy)
    weights.write_bytes(data[:9] + b"#" + data[10:])
    with pytest.raises(CheckpointError, match="damaged"):
        open_checkpoint(copy)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors"):
        open_checkpoint(copy)
    (copy / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot read"):
        open_checkpoint(copy)


@pytest.mark.parametrize("runner", ["fast", "hf"])
def test_a_missing_tensor_is_named(copy: Path, runner: Any) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(copy / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.down_proj\.weight"):
        open_stage_model(ModelOptions(str(copy), 0, 2, 0, 2, blocks=4, dtype="fp32", runner=runner))
    # The stage that does not own the layer does not miss it.
    open_stage_model(ModelOptions(str(copy), 1, 2, 2, 4, blocks=4, dtype="fp32", runner=runner))


def test_a_tensor_of_another_shape_is_named(copy: Path) -> None:
    change_config(copy, intermediate_size=64)
    with pytest.raises(CheckpointError, match=r"gate_proj\.weight is \[128, 64\], config\.json says \[64, 64\]"):
        open_stage_model(ModelOptions(str(copy), 0, 2, 0, 2, blocks=4, dtype="fp32"))


def test_sharded_weights_are_read_through_their_index(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_models["qwen3"])
    model.save_pretrained(tmp_path, max_shard_size="200KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    whole, sharded = open_checkpoint(tiny_models["qwen3"]), open_checkpoint(tmp_path)
    assert sharded.entries.keys() == whole.entries.keys()
    assert sharded.fingerprint != whole.fingerprint
    open_stage_model(ModelOptions(str(tmp_path), 0, 1, 0, 4, blocks=4, dtype="fp32"))
    next(iter(sorted(tmp_path.glob("*.safetensors")))).unlink()
    with pytest.raises(CheckpointError, match="has no model-00001"):
        open_checkpoint(tmp_path)


def test_the_fingerprint_tells_fine_tunes_of_one_model_apart(copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    before = open_checkpoint(copy).fingerprint
    tensors = {name: tensor + 1 for name, tensor in load_file(copy / "model.safetensors").items()}
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    assert open_checkpoint(copy).fingerprint != before


def test_end_of_sequence_tokens_come_from_the_generation_config_first(copy: Path) -> None:
    change_config(copy, eos_token_id=3)
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 5]}))
    assert open_checkpoint(copy).eos_token_ids == (4, 5)
    (copy / "generation_config.json").unlink()
    assert open_checkpoint(copy).eos_token_ids == (3,)


def test_what_cannot_be_opened_is_said_in_one_line(copy: Path) -> None:
    for changes, message in (
        ({"last_layer": 9}, "not part of a model of 4 layers"),
        ({"blocks": 0}, "both must be positive"),
        ({"dtype": "fp4"}, "choose auto, bf16 or fp32"),
        ({"device": "tpu"}, "only cpu"),
        ({"attention": "fancy"}, "not known"),
    ):
        options = {
            "model": str(copy),
            "stage": 0,
            "stages": 1,
            "first_layer": 0,
            "last_layer": 4,
            "blocks": 4,
            **changes,
        }
        with pytest.raises(ModelError, match=message):
            open_stage_model(ModelOptions(**options))  # type: ignore[arg-type]


def test_a_plan_needs_no_torch_and_covers_the_model(copy: Path) -> None:
    plan = plan_model(str(copy), 2)
    assert plan.spans == ((0, 2), (2, 4))
    assert plan.tokenizer == copy
    assert plan_model(str(copy), 2, (1, 3)).spans == ((0, 1), (1, 4))
    with pytest.raises(ModelError, match="names 2 stages"):
        plan_model(str(copy), 3, (1, 3))
    code = (
        "import sys; from wavepp.stage.model.factory import plan_model;"
        f"plan_model({str(copy)!r}, 2); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
