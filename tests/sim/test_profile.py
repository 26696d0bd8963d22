"""Cost profiles: what is in them reaches the stages, and what makes no sense is refused."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from wavepp.core.errors import InvalidInputError
from wavepp.core.waves.cost import StageCost
from wavepp.sim.profile import Profile, load_profile

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
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        profile(**wrong)


def test_the_profiles_that_come_with_wavepp_can_be_read_and_say_where_they_come_from() -> None:
    folder = resources.files("wavepp.sim") / "profiles"
    for entry in folder.iterdir() if folder.is_dir() else ():
        read = Profile.model_validate(json.loads(entry.read_text()))
        assert entry.name == f"{read.name}.json"
        assert len(read.stages(8)) == 8


@pytest.mark.parametrize(
    ("content", "said"),
    [("no json", "is not JSON"), ("{}", "token_us: Field required"), ("[]", "dict")],
)
def test_a_file_that_is_no_profile_is_refused_in_plain_words(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(InvalidInputError, match=said) as refused:
        load_profile(str(tmp_path / "p.json"))
    assert "pydantic" not in str(refused.value)
