"""The performance programs' own arithmetic, and that one of them runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perf.load import Prompts
from perf.prefill import MESH, Series, goals_of, ratio_rows
from perf.report import Goal, table
from perf.starts import KINDS, orders
from perf.stats import Step, percentile, spread, utilisation

ROOT = Path(__file__).parents[2]
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(FLOATS, min_size=1), st.floats(0, 1))
def test_a_percentile_is_the_least_value_that_enough_values_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    enough = [v for v in values if sum(w <= v for w in values) >= share * len(values) - 1e-9]
    assert found == min(enough)


def test_percentiles_of_a_known_list() -> None:
    assert spread([float(i) for i in range(100, 0, -1)]).json() == {
        "count": 100,
        "p50": 50.0,
        "p95": 95.0,
        "p99": 99.0,
        "largest": 100.0,
    }


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        percentile([], 0.5)


def test_utilisation_counts_what_lies_inside_the_window_for_each_stage() -> None:
    steps = [
        Step(0, 0, 100),  # half of it before the window
        Step(0, 120, 30),
        Step(1, 140, 100),  # ends after it
        Step(1, 400, 10),  # not in it at all
    ]
    assert utilisation(steps, 50, 150) == {0: 0.8, 1: 0.1}


def test_orders_of_starts_have_each_kind_at_each_place_equally_often() -> None:
    drawn = orders(25, seed=3)
    assert len(set(drawn)) == 25
    for place in range(len(KINDS)):
        assert sorted(order[place] for order in drawn) == sorted(KINDS * 5)
    assert len(set(orders(120, seed=3))) == 120


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        utilisation([], 5, 5)


def test_a_table_aligns_words_left_and_numbers_right() -> None:
    lines = table(("name", "n", "x"), [["a", 1, 0.25], ["longer", 1234, None]]).splitlines()
    assert lines == ["name        n     x", "------  -----  ----", "a           1  0.25", "longer  1,234     -"]


def test_goals_judge_medians_of_ratios_not_ratios_of_medians() -> None:
    busy = Series("w", MESH, 4, utilisation=[0.91, 0.95, 0.5], of_plain=[2.0, 0.9, 1.1], of_pair=[0.7, 0.95, 0.92])
    lone = Series("w", MESH, 1, of_plain=[0.9])
    assert [(goal.measured, goal.met) for goal in goals_of([busy, lone])] == [
        (0.91, True),
        (0.92, True),
        (1.1, True),
        (0.9, False),
    ]
    assert [row[1:] for row in ratio_rows([busy])] == [
        [4, "plain transformers, 2 threads, next window", 1.1, "2.00 0.90 1.10"],
        [4, "bare runner, 2 processes x 1 thread, by turns", 0.92, "0.70 0.95 0.92"],
    ]


def test_a_goal_says_whether_it_is_met() -> None:
    assert Goal("probe", 9.0, 10.0, "us").met
    assert not Goal("probe", 11.0, 10.0, "us").met
    assert Goal("utilisation", 0.95, 0.9, "", at_least=True).met
    assert "NOT MET" in str(Goal("utilisation", 0.85, 0.9, "", at_least=True))


def test_cached_prompts_share_a_prefix_and_nothing_else() -> None:
    prompts = Prompts(vocab_size=1000, seed=3)
    prefix = prompts.fresh(64)
    one, other = prompts.cached([prefix], 96), prompts.cached([prefix], 96)
    assert len(one) == len(other) == 4 * 96
    assert one[:256] == other[:256] == prefix
    assert one[256:] != other[256:]


@pytest.mark.timeout(60)
def test_the_admission_program_measures_an_emulated_cluster() -> None:
    command = [sys.executable, "-m", "perf.admission", "--quick", "--seconds", "1.5", "--clients", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr
    written = Path(done.stdout.rsplit("written to ", 1)[1].strip())
    result = json.loads(written.read_text())
    written.unlink()
    (cell,) = result["results"]["cells"]
    assert cell["stages"] == 2
    assert cell["admission"]["count"] >= 4
    assert 0.0 < cell["admission"]["p50"] <= cell["admission"]["p99"]
    assert cell["etcd"]["p50"] > 0.0
    assert cell["cached_share"] > 0.85
    assert result["load"]["own_cores"] > 0.0
