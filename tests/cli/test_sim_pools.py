"""`wavepp sim trace` and `wavepp sim retention`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wavepp.cli.main import app


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
    assert all("+-" in line for line in said.splitlines() if " mpu " in line or " cost " in line)


def test_retention_says_good_hits_against_those_of_exact_lru_for_every_rate_and_policy() -> None:
    sizes = ("--documents", "4", "--prefix", "4096", "--question", "600", "--requests", "20", "--share", "2")
    code, said = ask(
        "retention", "--rates", "0.02,0.2", "--policies", "mpu,cost", "--seeds", "2", "--stages", "4", *sizes
    )
    assert code == 0, said
    assert "4 documents of 4,096 tokens" in said
    rows = [line for line in said.splitlines() if " mpu " in line or " cost " in line]
    assert len(rows) == 4
    assert all("1.000" in row for row in rows[:2]), "with time between them every repeat is a good hit"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("trace", "absent.jsonl"), "trace absent.jsonl: cannot be read: No such file or directory\n"),
        (("trace", "absent.jsonl", "--policies", "mpu,best"), "give some of static,mpu,cost"),
        (("trace", "absent.jsonl", "--seeds", "2"), "--seeds goes with --spread-s"),
        (("retention", "--policies", "mpu,mpu"), "give some of static,mpu,cost"),
        (
            ("trace", "absent.jsonl", "--pool-tokens", "511"),
            "a pool of 511 tokens does not hold one block of 512 tokens",
        ),
        (("retention", "--prefix", "512", "--documents", "1"), "a pool of 307 tokens does not hold one block of 512"),
        (("retention", "--rates", "fast"), "numbers above 0"),
        (("retention", "--rates", "0"), "numbers above 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: tuple[str, ...], says: str) -> None:
    code, said = ask(*arguments)
    assert code == 1
    assert says in said
    assert said.count("\n") == 1
