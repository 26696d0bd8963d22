"""The edges of simulations: beginnings, ends, and input that makes no sense."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from wavepp.cli.main import app
from wavepp.core.errors import InvalidInputError
from wavepp.profiles.profile import ProfileError, load_profile
from wavepp.sim.results import Finished, Log
from wavepp.sim.workload import cold


def test_who_ended_in_the_wave_of_the_last_that_does_not_count_does_not_count() -> None:
    log = Log(finished=[Finished(0.0, done, 10, 0, 5.0) for done in (10.0, 10.0, 20.0, 20.0)])
    assert (log.summary(1).requests, log.summary(1).utilisation) == (2, 1.0)
    with pytest.raises(InvalidInputError):
        log.summary(4)


def test_a_prompt_of_one_token_keeps_it_under_jitter() -> None:
    asks = cold(1).asks(0)
    assert {next(asks).prompt_tokens for _ in range(50)} == {1}


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b"{}", b"not json"])
def test_a_profile_that_is_none_is_refused_in_our_own_words(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match="profile"):
        load_profile(str(path))


def test_a_profile_with_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(ProfileError, match="profile"):
        load_profile("x" * 5000)


def test_cached_tokens_of_a_named_workload_are_not_ignored_but_refused() -> None:
    said = CliRunner().invoke(app, ["plan", "--workload", "cold 64K", "--cached", "10"])
    assert said.exit_code == 1
    assert "--cached goes with --prompt" in said.output
