"""A few cells of the grid, with fixed seeds: what the policy `cost` is held to.

The whole grid takes two hours (`python -m perf.sim grid`); docs/scheduling.md has its figures. The cells here are ones
in which the goals are reached with a margin, of every kind of workload.
"""

from __future__ import annotations

from functools import cache
from xml.etree import ElementTree

from perf.sim.grid import CellResult, GridPlan, as_json, cells, run_grid
from perf.sim.plots import plot_grid
from perf.sim.verdict import COMPLETION_MAX, GAIN_MIN, THROUGHPUT_MIN, Comparison, compare, gain_over_mpu

from wavepp.profiles.profile import load_profile
from wavepp.sim.experiment import Rules
from wavepp.sim.workload import cold, workload_by_name

PROFILE = load_profile("kimi-k3-gb300-pp8")


@cache
def quick_grid() -> tuple[CellResult, ...]:
    chosen = [workload_by_name(name) for name in ("cold 64K", "reuse 128K", "4K on 36K", "mixed 128K")]
    plan = GridPlan(PROFILE, Rules(), cells(chosen, [8], [1, 4, 16]), ("static", "mpu", "cost", "lockstep"), 2, 20)
    return tuple(run_grid(plan, 2, lambda done, of: None))


def label(result: CellResult) -> str:
    return f"{result.cell.workload.name}, c = {result.cell.concurrency}"


def test_cost_has_the_throughput_of_the_better_policy_at_no_longer_completion() -> None:
    for result in quick_grid():
        found = compare(result)
        assert found.throughput >= THROUGHPUT_MIN, label(result)
        assert found.p50 <= COMPLETION_MAX, label(result)
        assert found.p95 <= COMPLETION_MAX, label(result)


def test_cost_comes_near_the_bound() -> None:
    for result in quick_grid():
        assert compare(result).of_bound >= (0.95 if "mixed" in label(result) else 0.97), label(result)


def test_cost_is_far_ahead_of_mpu_where_few_requests_are_under_way() -> None:
    gain = gain_over_mpu(quick_grid(), 8)
    assert gain is not None
    assert gain >= GAIN_MIN


def test_admission_on_the_executors_path_costs_the_lockstep_baseline_much_of_its_time_with_short_suffixes() -> None:
    for result in quick_grid():
        lockstep, static = result.by_policy["lockstep"].utilisation, result.by_policy["static"].utilisation
        assert lockstep < static, label(result)
        if result.cell.workload.name == "4K on 36K":
            assert lockstep < 0.7 * static, label(result)


def test_a_grid_as_json_says_what_it_was_made_with() -> None:
    plan = GridPlan(PROFILE, Rules(), cells([cold(65_536)], [8], [1]), ("static", "mpu", "cost", "lockstep"), 2, 20)
    content = as_json(plan, quick_grid()[:1])
    assert content["simulated"] is True
    assert content["seeds"] == 2
    assert set(content["cells"][0]["policies"]) == {"static", "mpu", "cost", "lockstep"}  # type: ignore[index]


def test_what_is_missed_is_named() -> None:
    found = compare(quick_grid()[0])
    assert found.misses == []
    assert Comparison(found.result, 0.98, 1.03, 1.03, 0.9).misses == ["throughput", "p50", "p95", "bound"]


def test_a_picture_has_a_panel_a_workload_with_a_line_for_each_policy_and_the_bound() -> None:
    picture = plot_grid(quick_grid(), 8)
    assert plot_grid(quick_grid(), 8) == picture
    space = {"svg": "http://www.w3.org/2000/svg"}
    panels = ElementTree.fromstring(picture).findall("svg:g", space)
    assert [panel.findtext("svg:g/svg:text", namespaces=space) for panel in panels] == [
        "cold 64K",
        "reuse 128K",
        "4K on 36K",
        "mixed 128K",
    ]
    for panel in panels:
        lines = {line.get("class"): (line.get("points") or "").split() for line in panel.findall("svg:polyline", space)}
        assert set(lines) == {"static", "mpu", "cost", "lockstep", "bound"}
        assert {len(points) for points in lines.values()} == {3}
