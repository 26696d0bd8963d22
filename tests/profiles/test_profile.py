"""Profiles: what is in them reaches the stages, and what makes no sense is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from wavepp.core.waves.cost import StageCost
from wavepp.profiles.profile import EmulatedModel, Profile, ProfileError, is_emulated, load_profile, profile_names

FIELDS: dict[str, Any] = {
    "name": "made-up",
    "derived": "made up",
    "measured_stages": 4,
    "launch_ms": 2.0,
    "token_us": 18.0,
    "pair_ps": 70.0,
    "wave_tokens_max": 16_384,
    "wave_tokens_min": 8_192,
    "pool_tokens": 1_000_000,
}
MODEL: dict[str, Any] = {
    "layers": 4,
    "vocab_size": 32_000,
    "max_tokens": 4096,
    "hidden_size": 16,
    "hidden_bytes": 64,
}


def profile(**changes: Any) -> Profile:
    return Profile.model_validate(FIELDS | changes)


def test_a_stage_costs_what_was_measured_on_as_many_stages() -> None:
    (first, *others) = profile().stages(4)
    assert first.launch_ms == 2.0
    assert first.token_ms == pytest.approx(0.018)
    assert first.pair_ms == pytest.approx(7e-8)
    assert others == [first] * 3


def test_on_twice_as_many_stages_each_has_half_the_layers_but_a_whole_launch() -> None:
    assert profile().stages(8)[5] == StageCost(2.0, 0.009, 3.5e-8)


def test_slow_stages_stay_where_they_were_when_the_model_is_split_further() -> None:
    base = profile().stages(8)[0]
    stages = profile(slowdown=(1.0, 1.5, 1.0, 2.0)).stages(8)
    assert stages == [base.scaled(factor) for factor in (1, 1, 1.5, 1.5, 1, 1, 2, 2)]
    assert profile(slowdown=(1.0, 1.5, 1.0, 2.0)).stages(1)[0].launch_ms == 2.0


def test_a_stage_with_more_layers_costs_as_much_more_but_for_its_launch() -> None:
    few, many = (profile(slowdown=(1.0, 2.0)).stage_cost(1, 2, part) for part in (0.25, 0.75))
    assert few.launch_ms == many.launch_ms == 4.0
    assert (many.token_ms, many.pair_ms) == pytest.approx((3 * few.token_ms, 3 * few.pair_ms))


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_us": 0.0},
        {"pair_ps": -1.0},
        {"launch_ms": float("inf")},
        {"hop_ms": float("nan")},
        {"slowdown": [1.0, 0.0]},
        {"slowdown": [-1.0]},
        {"measured_stages": 0},
        {"wave_tokens_max": 63},
        {"derived": ""},
        {"unknown": 1},
        {"model": {"layers": 4}},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        profile(**wrong)


def test_the_profiles_that_come_with_wavepp_can_be_read_and_say_where_they_come_from() -> None:
    assert {"small", "kimi-k3-gb300-pp8"} <= set(profile_names())
    for name in profile_names():
        read = load_profile(name)
        assert read.name == name
        assert read.derived
        assert len(read.stages(8)) == 8


@pytest.mark.parametrize(
    ("model", "emulated"),
    [
        ("emulated", True),
        ("emulated:small", True),
        ("emulated:/a/b.json", True),
        ("emulated-small", False),
        ("", False),
    ],
)
def test_emulated_models_are_told_by_their_names(model: str, emulated: bool) -> None:
    assert is_emulated(model) == emulated


def test_only_a_profile_with_a_model_can_be_emulated() -> None:
    with pytest.raises(ProfileError, match=r"'made-up' cannot be emulated: it has no section \"model\" \(layers, "):
        profile().emulated()
    assert profile(model=MODEL).emulated() == EmulatedModel(**MODEL)


def test_a_file_in_the_former_format_of_emulated_profiles_is_told_what_changed(tmp_path: Path) -> None:
    cost = {"step_us": 300.0, "token_us": 0.6, "token_key_us": 0.00004}
    (tmp_path / "old.json").write_text(json.dumps({"name": "old", **MODEL, "layer_cost": cost, "stages": [cost]}))
    with pytest.raises(ProfileError, match=r"old\.json.* has layer_cost, .*launch_ms = step_us / 1e3; .*slowdown"):
        load_profile(str(tmp_path / "old.json"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("no json", "is not JSON"),
        ("{}", "token_us: Field required"),
        ("[]", "dict"),
        (json.dumps({**FIELDS, "model": {**MODEL, "layers": 0}}), r"model\.layers: "),
    ],
)
def test_a_file_that_is_no_profile_is_refused_in_plain_words(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(ProfileError, match=said) as refused:
        load_profile(str(tmp_path / "p.json"))
    assert "pydantic" not in str(refused.value)
