"""`wavepp sim trace`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from table_support import mean_and_spread, policy_name, rows
from wavepp.cli.main import app
from wavepp.profiles.profile import load_profile
from wavepp.sim.timed_mesh import TimedSetup
from wavepp.sim.trace import read_trace, timed_asks
from wavepp.sim.trace_replay import replay, spread_out


def ask(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["sim", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def trace(tmp_path: Path) -> str:
    lines = [
        json.dumps({"timestamp": 500 * i, "input_length": 2_000, "output_length": 9, "hash_ids": [1, 2, 3, 10 + i]})
        for i in range(12)
    ]
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_trace_is_replayed_with_every_policy(trace: str) -> None:
    code, said = ask("trace", trace, "--speed", "0.5")
    assert code == 0, said
    assert "12 requests at 0.5x, pools of 3,000,000 tokens" in said
    for policy in ("static", "mpu", "cost"):
        (line,) = (line for line in said.splitlines() if f" {policy} " in line)
        assert "1.000" in line, "everything that could be reused was"


def test_requests_of_a_coarse_trace_can_be_spread_with_several_seeds(trace: str) -> None:
    code, said = ask("trace", trace, "--policies", "mpu,cost", "--spread-s", "0.5", "--seeds", "2")
    assert code == 0, said
    assert "12 requests at 1x, each up to 0.5 s after its stamp, 2 seeds" in said
    arrivals = list(timed_asks(read_trace(Path(trace))))
    for row, policy in zip(rows(said), ("mpu", "cost"), strict=True):
        assert row["policy"] == policy
        setup = TimedSetup(load_profile("kimi-k3-gb300-pp8"), policy_name(policy), 512)
        runs = [replay(spread_out(arrivals, 500.0, seed), setup) for seed in range(2)]
        for heading, values in (
            ("p50", [run.summary.p50_ms / 1e3 for run in runs]),
            ("p95", [run.summary.p95_ms / 1e3 for run in runs]),
        ):
            mean, spread = mean_and_spread(row[heading])
            assert mean == pytest.approx(sum(values) / 2, abs=0.0051)
            assert spread == pytest.approx(max(values) - min(values), abs=0.0051)
        assert float(row["utilisation"]) == pytest.approx(sum(run.summary.utilisation for run in runs) / 2, abs=5.1e-4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("trace", "absent.jsonl"), "trace absent.jsonl: cannot be read: No such file or directory\n"),
        (("trace", "absent.jsonl", "--policies", "mpu,best"), "give some of static,mpu,cost"),
        (("trace", "absent.jsonl", "--seeds", "2"), "--seeds 2 goes with --spread-s"),
        (
            ("trace", "absent.jsonl", "--pool-tokens", "511"),
            "a pool of 511 tokens does not hold one block of 512 tokens",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: tuple[str, ...], says: str) -> None:
    code, said = ask(*arguments)
    assert code == 1
    assert says in said
    assert said.count("\n") == 1
