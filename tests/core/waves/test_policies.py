"""Wave budgets: the formulas worked by hand, and the hysteresis."""

from __future__ import annotations

from typing import Any

import pytest

from wavepp.core.errors import InvalidInputError
from wavepp.core.waves.policies import MpuPolicy, QueueView, StaticPolicy, mpu_budgets


def view(*remaining: int, in_flight: int = 0) -> QueueView:
    return QueueView(sorted(remaining), sum(remaining), in_flight)


def policy(stages: int = 4, m: int = 16_384, b_min: int = 8_192, **more: Any) -> MpuPolicy:
    return MpuPolicy(stages=stages, wave_tokens_max=m, wave_tokens_min=b_min, block_tokens=64, **more)


# With P = 4: R = 8, S = 8 + (2 - 1) * 4 = 12, budgets 16,384 and 8,192.
ENOUGH = view(12 * 16_384)
TOO_LITTLE = view(12 * 16_384 - 1)


def test_static_always_gives_m() -> None:
    assert StaticPolicy(4096).budget(view(1)) == StaticPolicy(4096).budget(ENOUGH) == 4096


@pytest.mark.parametrize(
    ("m", "b_min", "block", "budgets"),
    [
        (16_384, 8_192, 64, (16_384, 8_192)),
        (16_384, 2_048, 64, (16_384, 8_192, 4_096, 2_048)),
        (16_384, 3_000, 64, (16_384, 8_192, 4_096, 2_944)),  # b_min itself on the block grid
        (1_000, 100, 64, (1_000, 448, 192, 64)),  # 500 -> 448, 224 -> 192, 96 -> 64 = b_min
        (4_096, 8_192, 64, (4_096, 2_048)),  # b_min = min(8,192, M / 2)
        (64, 8_192, 64, (64,)),
    ],
)
def test_budgets_halve_down_to_b_min_on_the_block_grid(
    m: int, b_min: int, block: int, budgets: tuple[int, ...]
) -> None:
    assert mpu_budgets(m, b_min, block) == budgets


def test_waves_on_offer_are_the_tokens_over_the_budget() -> None:
    assert policy().waves_on_offer(view(8_192, 12_288), 8_192) == 2.5


def test_waves_on_offer_are_at_least_the_requests_above_half_a_budget() -> None:
    queue = view(8_193, 8_193, 8_193, 8_192, 8_192)
    assert policy().waves_on_offer(queue, 16_384) == 3  # 40,963 / 16,384 = 2.5; 8,192 is not above the half


def test_waves_in_flight_count() -> None:
    assert policy().waves_on_offer(view(16_384, in_flight=7), 16_384) == 8.0


def test_twelve_waves_of_work_keep_the_largest_budget() -> None:
    mpu = policy()
    assert [mpu.budget(ENOUGH) for _ in range(20)] == [16_384] * 20


def test_seven_in_flight_and_five_on_offer_are_enough_too() -> None:
    mpu = policy()
    assert [mpu.budget(view(5 * 16_384, in_flight=7)) for _ in range(8)] == [16_384] * 8


def test_the_smallest_budget_is_the_target_when_none_gives_enough() -> None:
    mpu = policy(b_min=2_048)
    assert [mpu.budget(view(10)) for _ in range(4)] == [16_384, 16_384, 16_384, 2_048]


def test_the_largest_sufficient_budget_is_the_target() -> None:
    mpu = policy(b_min=2_048)
    assert [mpu.budget(view(12 * 4_096)) for _ in range(4)][-1] == 4_096


def test_a_smaller_budget_takes_p_decisions_and_a_larger_one_half_a_ring() -> None:
    mpu = policy(stages=3, ring=10)  # S = 13
    shrink = [mpu.budget(view(16_384)) for _ in range(3)]
    grow = [mpu.budget(view(13 * 16_384)) for _ in range(5)]
    assert shrink == [16_384, 16_384, 8_192]
    assert grow == [8_192, 8_192, 8_192, 8_192, 16_384]


def test_a_decision_for_the_present_budget_starts_the_count_again() -> None:
    mpu = policy()
    for queue in (TOO_LITTLE, TOO_LITTLE, TOO_LITTLE, ENOUGH, TOO_LITTLE, TOO_LITTLE, TOO_LITTLE):
        assert mpu.budget(queue) == 16_384
    assert mpu.budget(TOO_LITTLE) == 8_192


def test_a_decision_for_the_other_direction_starts_the_count_again() -> None:
    mpu = policy(b_min=4_096)
    middle, small = view(12 * 8_192), view(12 * 4_096)
    assert [mpu.budget(middle) for _ in range(4)][-1] == 8_192
    for queue in (small, small, small, ENOUGH, small, small, small):
        assert mpu.budget(queue) == 8_192
    assert mpu.budget(small) == 4_096


def test_decisions_in_a_row_need_only_agree_on_the_direction() -> None:
    queues = [view(12 * 8_192), view(12 * 4_096), view(12 * 8_192), view(12 * 4_096)]
    mpu = policy(b_min=4_096)
    assert [mpu.budget(queue) for queue in queues] == [16_384, 16_384, 16_384, 4_096]


def test_the_first_budget_is_m() -> None:
    assert policy().budget(view(10)) == 16_384


@pytest.mark.parametrize("wrong", [{"stages": 0}, {"m": 0}, {"b_min": 0}, {"ring": 0}, {"factor": 0}], ids=str)
def test_senseless_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError):
        policy(**wrong)
