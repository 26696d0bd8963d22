"""`python -m perf.sim`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from perf.sim.__main__ import app
from perf.sim.retention import Retention, retain
from typer.testing import CliRunner

from table_support import mean_and_spread, policy_name, rows
from wavepp.profiles.profile import load_profile
from wavepp.sim.timed_mesh import TimedSetup

SMALL_GRID = (
    "grid",
    "--stages",
    "1",
    "--concurrency",
    "1",
    "--seeds",
    "1",
    "--requests",
    "2",
    "--workload",
    "4K on 36",
)


def ask(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_a_grid_prints_a_table_and_verdicts_and_writes_json_and_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "grid"
    small = ("--workload", "4K on 36K", "--stages", "4", "--concurrency", "1,2", "--seeds", "1", "--requests", "4")
    code, said = ask("grid", *small, "--jobs", "1", "--out", str(out))
    assert code == 0, said
    assert "kimi-k3-gb300-pp8" in said
    assert "Fitted, not measured here" in said
    assert "cost, throughput >= 0.99 of the better of static and mpu: 2 of 2 cells" in said
    content = json.loads((out / "grid.json").read_text())
    assert [cell["concurrency"] for cell in content["cells"]] == [1, 2]
    assert (out / "utilisation-pp4.svg").read_text().startswith("<svg")


def test_retention_says_good_hits_against_those_of_exact_lru_for_every_rate_and_policy() -> None:
    sizes = ("--documents", "4", "--prefix", "4096", "--question", "600", "--requests", "20", "--share", "0.5")
    code, said = ask(
        "retention", "--rates", "0.2,30", "--policies", "mpu,cost", "--seeds", "2", "--stages", "4", *sizes
    )
    assert code == 0, said
    assert "4 documents of 4,096 tokens" in said
    found = rows(said)
    assert [(row["per s"], row["policy"]) for row in found] == [
        (rate, policy) for rate in ("0.2", "30") for policy in ("mpu", "cost")
    ]
    load = Retention(4, 4096, 600, 1.0)
    for row in found:
        setup = TimedSetup(
            load_profile("kimi-k3-gb300-pp8"), policy_name(row["policy"]), 512, 4, int(0.5 * load.tokens)
        )
        runs = [retain(load, setup, float(row["per s"]), 20, seed) for seed in range(2)]
        assert float(row["good hits"]) == pytest.approx(sum(run.rate for run in runs) / 2, abs=5.1e-4)
        assert float(row["LRU"]) == pytest.approx(sum(run.oracle_rate for run in runs) / 2, abs=5.1e-4)
        mean, _ = mean_and_spread(row["of LRU's"])
        assert mean == pytest.approx(sum(run.good / run.oracle_good for run in runs) / 2, abs=5.1e-4)
        assert int(row["failed"]) == sum(run.replay.failed for run in runs)
    assert any(row["good hits"] != row["LRU"] for row in found), "else they could be mixed up"


def test_a_row_of_the_retention_table_is_one_line_even_with_long_times() -> None:
    sizes = ("--documents", "12", "--prefix", "131072", "--requests", "24", "--seeds", "2", "--stages", "1")
    code, said = ask("retention", "--rates", "0.75", *sizes)
    assert code == 0, said
    assert [row["policy"] for row in rows(said)] == ["static", "mpu", "cost"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("grid", "--profile", "nothing"), "profile 'nothing' is neither a file nor one of"),
        (("grid", "--stages", "0"), "every number must be 1 to 64"),
        (("grid", "--stages", "a"), "it must be numbers like 4,8,16"),
        (("grid", "--workload", "nothing"), "no workload has 'nothing' in its name"),
        (("grid", "--rules", "mine"), "--rules is router or paper"),
        ((*SMALL_GRID, "--out", "/proc"), "cannot write /proc/grid.json"),
        (("retention", "--policies", "mpu,mpu"), "give some of static,mpu,cost"),
        (("retention", "--prefix", "512", "--documents", "1"), "a pool of 307 tokens does not hold one block of 512"),
        (("retention", "--rates", "fast"), "numbers above 0"),
        (("retention", "--rates", "0"), "numbers above 0"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: tuple[str, ...], problem: str) -> None:
    code, said = ask(*arguments)
    assert code == 1
    assert said.startswith(f"perf.sim {arguments[0]}: ")
    assert problem in said
    assert len(said.strip().splitlines()) == 1
