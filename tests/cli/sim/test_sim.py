"""`wavepp sim` and `wavepp plan` as commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from wavepp.cli.main import app
from wavepp.cli.sim.sim import progress_bar


def ask(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_waves_are_drawn_and_the_time_of_the_slowest_stage_is_explained(tmp_path: Path) -> None:
    out = tmp_path / "waves.svg"
    small = ("--stages", "4", "--concurrency", "2", "--out", str(out))
    code, said = ask("sim", "waves", *small)
    assert code == 0, said
    assert "starved" in said
    assert all(f">{policy}: utilisation " in out.read_text() for policy in ("static", "mpu", "cost"))
    code, said = ask("sim", "waves", *small, "--policies", "static,cost")
    assert code == 0, said
    assert "mpu" not in said + out.read_text()


def test_profiles_say_where_they_come_from() -> None:
    code, said = ask("sim", "profiles")
    assert code == 0
    assert "glm-5.2-pp4: A guess with one anchor" in said
    assert "minimax-m2.7-pp4" in said


def test_a_plan_names_a_choice_and_what_is_lost() -> None:
    code, said = ask("plan", "--prompt", "40960", "--cached", "36864", "--clients", "4", "--wave-tokens", "16384")
    assert code == 0, said
    assert "take 1 pipeline of 8 stages with --policy cost --wave-tokens-max 16384" in said
    assert "lost to launches" in said


def test_a_plan_says_which_depths_do_not_fit_the_devices() -> None:
    code, said = ask("plan", "--prompt", "4096", "--clients", "1", "--stages", "3,5,8", "--wave-tokens", "8192")
    assert code == 0, said
    assert "left out: 3, 5 stages, which do not divide 8 devices" in said


def test_progress_without_a_terminal_is_a_line_for_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("simulating") as progress:
        for done in range(1, 41):
            progress(done, 40)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"simulating: {done} of 40" for done in range(4, 41, 4)]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("plan",), "say either --workload NAME or --prompt TOKENS"),
        (("plan", "--prompt", "10", "--cached", "10"), "must be below --prompt 10"),
        (("plan", "--prompt", "100", "--devices", "6", "--stages", "4"), "cannot be split into pipelines"),
        (("plan", "--prompt", "100", "--wave-tokens", "100"), "multiple of the block"),
        (("plan", "--prompt", "100", "--wave-tokens", "x"), "it must be numbers like 8192,16384"),
        (("sim", "waves", "--out", "/proc/waves.svg"), "cannot write /proc/waves.svg"),
        (
            ("plan", "--profile", "one-slow-stage", "--prompt", "100", "--stages", "2,8"),
            "so give --stages 8 or a profile",
        ),
        (("sim", "waves", "--out", "w.xyz"), "give a name that ends in .svg"),
        (("sim", "waves", "--out", "w.svg", "--policies", "best"), "give some of static,mpu,cost"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: tuple[str, ...], problem: str) -> None:
    code, said = ask(*arguments)
    assert code == 1
    assert problem in said
    assert len(said.strip().splitlines()) == 1
