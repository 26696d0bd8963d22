"""The wave planner by example: packing, order, when a wave is issued, ends."""

from __future__ import annotations

from typing import Any

import pytest

from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import GrantId
from wavepp.core.waves.planner import WavePlanner
from wavepp.core.waves.policies import QueueView, StaticPolicy, WavePolicy
from wavepp.core.waves.types import Chunk, PlannedWave, PlannerConfig

M = 1024


class Budgets(WavePolicy):
    """A policy that gives what it is told and remembers what it saw."""

    def __init__(self, *budgets: int) -> None:
        self.budgets = list(budgets)
        self.seen: list[tuple[list[int], int, int]] = []

    def budget(self, view: QueueView) -> int:
        assert list(view.sizes) == sorted(view.sizes)
        self.seen.append((list(view.sizes), view.tokens, view.waves_in_flight))
        return self.budgets.pop(0) if len(self.budgets) > 1 else self.budgets[0]


def config(**changes: Any) -> PlannerConfig:
    settings: dict[str, Any] = {
        "stages": 4,
        "wave_tokens_max": M,
        "wave_tokens_min": 256,
        "block_tokens": 64,
        "alignment_tokens": 64,
    }
    return PlannerConfig(**settings | changes)


def planner(*budgets: int, **changes: Any) -> WavePlanner:
    return WavePlanner(config(**changes), Budgets(*budgets) if budgets else StaticPolicy(M))


def add(plan: WavePlanner, grant: int, end: int, start: int = 0, keep_alive: bool = False) -> None:
    plan.add(GrantId(grant), start, end, keep_alive)


def issue(plan: WavePlanner, in_flight: int = 4) -> list[tuple[int, int, int]]:
    """(grant, start, length) of the next wave's chunks; by default while the pipeline is full enough."""
    wave = plan.plan(in_flight, 0)
    plan.validate()
    return [(chunk.grant, chunk.start, chunk.length) for chunk in wave.chunks] if wave else []


# ---- packing -----------------------------------------------------------------------------------------------


def test_a_request_is_cut_at_multiples_of_the_alignment_and_its_end_is_marked() -> None:
    plan = planner(alignment_tokens=128, wave_tokens_max=1024)
    add(plan, 1, 2100, start=128)
    waves = [plan.plan(4, 0) for _ in range(3)]
    assert [wave.chunks[0] for wave in waves if wave] == [
        Chunk(GrantId(1), 128, 1024, last=False, snapshot=False, decode=False),
        Chunk(GrantId(1), 1152, 948, last=True, snapshot=False, decode=False),
    ]
    assert waves[2] is None
    assert not plan.has_work()


def test_a_chunk_from_an_unaligned_start_ends_on_the_alignment() -> None:
    plan = planner(100)
    add(plan, 1, 300, start=10)
    assert [issue(plan) for _ in range(4)] == [[(1, 10, 54)], [(1, 64, 64)], [(1, 128, 64)], [(1, 192, 64)]]
    assert issue(plan) == [(1, 256, 44)]


def test_a_budget_below_the_alignment_still_makes_progress() -> None:
    plan = planner(1)
    add(plan, 1, 128)
    assert issue(plan) == [(1, 0, 64)]


def test_a_budget_above_m_is_m() -> None:
    plan = planner(10 * M)
    add(plan, 1, 10 * M)
    assert issue(plan) == [(1, 0, M)]


def test_requests_share_a_wave_in_order_of_arrival() -> None:
    plan = planner()
    for grant, end in ((1, 300), (2, 200), (3, 524)):
        add(plan, grant, end)
    assert issue(plan) == [(1, 0, 300), (2, 0, 200), (3, 0, 524)]


def test_a_remainder_of_half_the_budget_takes_a_fragment_and_a_smaller_one_does_not() -> None:
    plan = planner()
    add(plan, 1, 512)
    add(plan, 2, 2000)
    assert issue(plan) == [(1, 0, 512), (2, 0, 512)]
    plan = planner()
    add(plan, 1, 513)
    add(plan, 2, 2000)
    assert issue(plan) == [(1, 0, 513)]
    assert issue(plan) == [(2, 0, 1024)]


def test_half_of_an_odd_budget_is_not_rounded_down() -> None:
    plan = planner(1001, wave_tokens_min=1)
    add(plan, 1, 501)
    add(plan, 2, 2000)
    assert issue(plan) == [(1, 0, 501)]


def test_b_min_bounds_fragments_where_it_is_above_half_the_budget() -> None:
    plan = planner(512, wave_tokens_min=512)  # at most M / 2 = 512
    add(plan, 1, 64)
    add(plan, 2, 2000)
    assert issue(plan) == [(1, 0, 64)]


def test_a_small_remainder_takes_the_last_piece_of_a_request() -> None:
    plan = planner()
    add(plan, 1, 1500)
    add(plan, 2, 100)
    assert issue(plan) == [(1, 0, 1024)]
    assert issue(plan) == [(1, 1024, 476), (2, 0, 100)]


def test_a_small_remainder_is_filled_with_a_later_request_that_fits_whole() -> None:
    plan = planner()
    for grant, end in ((1, 600), (2, 5000), (3, 400), (4, 5000), (5, 24)):
        add(plan, grant, end)
    assert issue(plan) == [(1, 0, 600), (3, 0, 400), (5, 0, 24)]
    assert issue(plan) == [(2, 0, 1024)]


def test_without_filling_ahead_the_order_is_strict() -> None:
    plan = planner(fill_ahead_max=0)
    for grant, end in ((1, 600), (2, 5000), (3, 400)):
        add(plan, grant, end)
    assert issue(plan) == [(1, 0, 600)]


def test_filling_ahead_looks_past_a_bounded_number_of_requests() -> None:
    for fill_ahead_max, filled in ((2, True), (1, False)):
        plan = planner(fill_ahead_max=fill_ahead_max)
        for grant, end in ((1, 600), (2, 5000), (3, 5000), (4, 400)):
            add(plan, grant, end)
        assert ((4, 0, 400) in issue(plan)) is filled


def test_a_share_leaves_room_for_others_but_not_for_nobody() -> None:
    plan = planner(chunk_share_max=0.25)
    for grant in range(1, 6):
        add(plan, grant, 4096)
    assert issue(plan) == [(grant, 0, 256) for grant in range(1, 5)]
    plan = planner(chunk_share_max=0.25)
    add(plan, 1, 4096)
    assert issue(plan) == [(1, 0, 1024)]


def test_a_wave_has_at_most_so_many_requests() -> None:
    plan = planner(wave_requests_max=3)
    for grant in range(5):
        add(plan, grant, 10)
    assert [len(issue(plan)) for _ in range(2)] == [3, 2]


def test_policy_sees_what_waits_once_for_every_wave() -> None:
    policy = Budgets(M)
    plan = WavePlanner(config(), policy)
    add(plan, 1, 3000, start=1000)
    add(plan, 2, 500)
    plan.plan(5, 1)
    plan.plan(6, 2)  # stage 0 is busy: no decision
    plan.plan(6, 1)
    assert policy.seen == [([500, 2000], 2500, 5), ([500, 1016], 1516, 6)]  # the chunk is [1000, 1984)


# ---- spreading ---------------------------------------------------------------------------------------------


def test_requests_that_arrive_together_are_spread_while_the_pipeline_is_empty() -> None:
    plan = planner()
    for grant in range(8):
        add(plan, grant, 64)
    assert [len(issue(plan, in_flight)) for in_flight in range(4)] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("requests", "in_flight", "expected"), [(9, 0, 3), (1, 0, 1), (8, 2, 4), (8, 3, 8), (8, 4, 8), (8, 7, 8)]
)
def test_a_wave_takes_its_part_of_the_requests(requests: int, in_flight: int, expected: int) -> None:
    plan = planner()
    for grant in range(requests):
        add(plan, grant, 64)
    assert len(issue(plan, in_flight)) == expected


def test_decode_steps_are_not_spread() -> None:
    plan = planner()
    for grant in range(8):
        add(plan, grant, 64, keep_alive=True)
    issue(plan)
    for grant in range(8):
        plan.add_decode(GrantId(grant), 64)
    assert len(issue(plan, 0)) == 8


# ---- fixed grid --------------------------------------------------------------------------------------------


def test_on_a_fixed_grid_the_first_chunk_runs_to_the_next_multiple_of_m() -> None:
    plan = planner(fixed_grid=True)
    add(plan, 1, 2500, start=192)
    assert [issue(plan) for _ in range(3)] == [[(1, 192, 832)], [(1, 1024, 1024)], [(1, 2048, 452)]]


def test_on_a_fixed_grid_the_cuts_do_not_depend_on_the_budget_or_the_company() -> None:
    plan = planner(64, fixed_grid=True)
    add(plan, 1, 900)
    add(plan, 2, 1100)
    assert [issue(plan) for _ in range(3)] == [[(1, 0, 900)], [(2, 0, 1024)], [(2, 1024, 76)]]
    plan = planner(fixed_grid=True)
    add(plan, 1, 900)
    add(plan, 2, 1100)
    add(plan, 3, 124)
    assert [issue(plan) for _ in range(3)] == [[(1, 0, 900), (3, 0, 124)], [(2, 0, 1024)], [(2, 1024, 76)]]


# ---- snapshots ---------------------------------------------------------------------------------------------


def snapshots(plan: WavePlanner) -> list[tuple[int, int, bool, bool]]:
    taken = []
    while plan.has_work():
        wave = plan.plan(4, 0)
        assert wave is not None
        taken += [(chunk.start, chunk.length, chunk.snapshot, chunk.last) for chunk in wave.chunks]
    return taken


def test_without_recurrent_layers_no_snapshot_is_taken_and_no_tail_cut() -> None:
    plan = planner()
    add(plan, 1, 1100)
    assert snapshots(plan) == [(0, 1024, False, False), (1024, 76, False, True)]


def test_a_snapshot_is_taken_at_the_last_aligned_place_of_the_prompt() -> None:
    plan = planner(snapshot_interval_tokens=4096)
    add(plan, 1, 1100)
    assert snapshots(plan) == [(0, 1024, False, False), (1024, 64, True, False), (1088, 12, False, True)]


def test_a_snapshot_is_taken_at_the_end_of_an_aligned_prompt() -> None:
    plan = planner(snapshot_interval_tokens=4096)
    add(plan, 1, 1088)
    assert snapshots(plan) == [(0, 1024, False, False), (1024, 64, True, True)]


def test_snapshots_are_an_interval_apart() -> None:
    plan = planner(snapshot_interval_tokens=2048)
    add(plan, 1, 5 * 1024)
    assert [taken for _, _, taken, _ in snapshots(plan)] == [False, True, False, True, True]


def test_a_prompt_with_no_aligned_place_after_its_endpoint_is_not_cut() -> None:
    plan = planner(snapshot_interval_tokens=64)
    add(plan, 1, 100, start=64)
    assert snapshots(plan) == [(64, 36, False, True)]


# ---- decode ------------------------------------------------------------------------------------------------


def test_decode_steps_go_first_and_on_top_of_the_budget() -> None:
    plan = planner()
    add(plan, 1, 64, keep_alive=True)
    issue(plan)
    add(plan, 2, 2048)
    plan.add_decode(GrantId(1), 64)
    wave = plan.plan(4, 0)
    assert wave == PlannedWave(
        (
            Chunk(GrantId(1), 64, 1, last=True, snapshot=False, decode=True),
            Chunk(GrantId(2), 0, 1024, last=False, snapshot=False, decode=False),
        ),
        (),
    )


def decoding(plan: WavePlanner, *grants: int) -> None:
    for grant in grants:
        add(plan, grant, 64, keep_alive=True)
        issue(plan)
    for grant in grants:
        plan.add_decode(GrantId(grant), 64)


def test_decode_leaves_a_slot_to_prefill() -> None:
    plan = planner(wave_requests_max=2)
    decoding(plan, 1, 2, 3)
    add(plan, 9, 64)
    assert issue(plan) == [(1, 64, 1), (9, 0, 64)]
    assert issue(plan) == [(2, 64, 1), (3, 64, 1)]


def test_decode_and_prefill_take_turns_at_a_single_slot() -> None:
    plan = planner(wave_requests_max=1)
    decoding(plan, 1, 2)
    add(plan, 9, 2048)
    assert [issue(plan)[0][0] for _ in range(4)] == [1, 9, 2, 9]


def test_only_a_grant_that_is_alive_and_idle_may_decode() -> None:
    plan = planner()
    add(plan, 1, 64)
    add(plan, 2, 64, keep_alive=True)
    refused = [(1, 64), (2, 64), (3, 64)]  # not kept alive, still prefilling, unknown
    for grant, position in refused:
        with pytest.raises(InvalidInputError):
            plan.add_decode(GrantId(grant), position)
    issue(plan)
    with pytest.raises(InvalidInputError, match="positive"):
        plan.add_decode(GrantId(2), 0)
    plan.add_decode(GrantId(2), 64)
    with pytest.raises(InvalidInputError, match="earlier chunk"):
        plan.add_decode(GrantId(2), 65)
    plan.end(GrantId(2))
    with pytest.raises(InvalidInputError, match="ended"):
        plan.add_decode(GrantId(2), 65)


# ---- when --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_flight", "in_stage0", "issued"),
    [(0, 0, True), (1, 1, True), (2, 2, False), (7, 1, True), (8, 0, False), (8, 1, False)],
)
def test_a_wave_is_issued_when_ring_and_stage_0_have_room(in_flight: int, in_stage0: int, issued: bool) -> None:
    plan = planner()
    add(plan, 1, 64)
    assert (plan.plan(in_flight, in_stage0) is not None) is issued


def test_ends_alone_need_room_in_the_ring_only() -> None:
    plan = planner()
    add(plan, 1, 64)
    plan.end(GrantId(1))
    assert plan.plan(8, 0) is None
    assert plan.plan(7, 2) == PlannedWave((), (GrantId(1),))
    assert plan.plan(7, 2) is None


def test_ends_alone_wait_while_others_are_on_their_way_alone() -> None:
    plan = planner()
    add(plan, 1, 64)
    add(plan, 2, 64)
    issue(plan)
    plan.end(GrantId(1))
    assert plan.plan(3, 0) == PlannedWave((), (GrantId(1),))
    plan.end(GrantId(2))
    assert plan.plan(4, 0, ends_in_flight=True) is None
    add(plan, 3, 64)
    wave = plan.plan(4, 0, ends_in_flight=True)
    assert wave is not None
    assert (len(wave.chunks), wave.ended) == (1, (GrantId(2),))


def test_ends_wait_for_the_wave_that_work_will_get() -> None:
    plan = planner()
    add(plan, 1, 64)
    add(plan, 2, 64)
    plan.end(GrantId(1))
    assert plan.plan(7, 2) is None
    wave = plan.plan(7, 1)
    assert wave is not None
    assert wave.ended == (1,)
    assert [chunk.grant for chunk in wave.chunks] == [2]


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        planner().plan(1, 2)


# ---- ends --------------------------------------------------------------------------------------------------


def test_an_end_cancels_what_waits_and_goes_out_once() -> None:
    plan = planner()
    add(plan, 1, 5000)
    issue(plan)
    assert plan.end(GrantId(1))
    assert not plan.end(GrantId(1))
    assert plan.plan(4, 0) == PlannedWave((), (GrantId(1),))
    assert not plan.end(GrantId(1))
    assert not plan.end(GrantId(2))
    assert not plan.has_work()
    assert plan.waiting_tokens == 0


def test_a_cancelled_grant_still_needs_its_end() -> None:
    plan = planner()
    add(plan, 1, 5000)
    plan.cancel(GrantId(1))
    assert not plan.has_work()
    plan.cancel(GrantId(1))
    assert plan.end(GrantId(1))
    assert plan.plan(0, 0) == PlannedWave((), (GrantId(1),))


def test_an_end_cancels_a_decode_step_that_waits() -> None:
    plan = planner()
    decoding(plan, 1)
    plan.end(GrantId(1))
    assert plan.plan(4, 0) == PlannedWave((), (GrantId(1),))


def test_a_wave_has_a_bounded_number_of_ends() -> None:
    plan = planner()
    for grant in range(600):
        add(plan, grant, 10)
        plan.end(GrantId(grant))
    waves = [plan.plan(0, 0), plan.plan(0, 0), plan.plan(0, 0)]
    assert [len(wave.ended) if wave else None for wave in waves] == [512, 88, None]


def test_a_reset_forgets_all_grants() -> None:
    plan = planner()
    decoding(plan, 1)
    add(plan, 2, 5000)
    add(plan, 3, 64)
    plan.end(GrantId(3))
    plan.reset()
    assert not plan.has_work()
    assert plan.plan(0, 0) is None
    assert (plan.waiting_tokens, plan.waiting_requests) == (0, 0)
    add(plan, 2, 64)
    assert issue(plan) == [(2, 0, 64)]


def test_a_grant_is_added_once() -> None:
    plan = planner()
    add(plan, 1, 64)
    with pytest.raises(InvalidInputError, match="added before"):
        add(plan, 1, 64)


@pytest.mark.parametrize(("start", "end"), [(64, 64), (65, 64), (-1, 64)])
def test_prefill_without_tokens_is_refused(start: int, end: int) -> None:
    plan = planner()
    with pytest.raises(InvalidInputError, match="no token"):
        add(plan, 1, end, start=start)
    assert not plan.has_work()


def test_the_number_of_known_grants_is_bounded() -> None:
    plan = planner(grants_max=2)
    add(plan, 1, 64)
    add(plan, 2, 64)
    with pytest.raises(InvalidInputError, match="limit"):
        add(plan, 3, 64)


@pytest.mark.parametrize(
    "wrong",
    [
        {"stages": 0},
        {"stages": 65},
        {"block_tokens": 0},
        {"alignment_tokens": 96},
        {"alignment_tokens": 0},
        {"wave_tokens_max": 1000},
        {"wave_tokens_max": 0},
        {"wave_tokens_min": 0},
        {"wave_requests_max": 0},
        {"wave_requests_max": 513},
        {"ring": -1},
        {"chunk_share_max": 0.0},
        {"chunk_share_max": 1.5},
        {"fill_ahead_max": -1},
    ],
    ids=str,
)
def test_senseless_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        config(**wrong)
