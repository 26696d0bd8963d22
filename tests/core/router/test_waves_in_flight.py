"""Which waves are on stage 0, and which a stage can have died of."""

from __future__ import annotations

import pytest

from wavepp.core.ids import GrantId, StageIndex, WaveId
from wavepp.core.router.waves_in_flight import IssuedWave, WavesInFlight
from wavepp.core.waves.types import Chunk


def wave_of(*grants: int, ended: tuple[int, ...] = ()) -> IssuedWave:
    chunks = tuple(Chunk(GrantId(g), 0, 4, last=True, snapshot=False, decode=False) for g in grants)
    return IssuedWave(chunks, tuple(GrantId(g) for g in ended))


def issued(count: int, *, reports: bool = True) -> WavesInFlight:
    """Wave i has a chunk of grant i."""
    waves = WavesInFlight()
    waves.reports = reports
    for i in range(1, count + 1):
        waves.issue(WaveId(i), wave_of(i))
    return waves


def done(waves: WavesInFlight, *, by: int, up_to: int) -> None:
    for wave in range(1, up_to + 1):
        waves.step_done(StageIndex(by), WaveId(wave))


def suspected(waves: WavesInFlight, stage: int, *died: int) -> set[int]:
    found = waves.suspected(StageIndex(stage), frozenset(StageIndex(s) for s in died or (stage,)))
    return {int(grant) for grant in found}


def test_a_wave_is_on_stage_0_until_that_or_a_stage_behind_it_says_that_it_is_done() -> None:
    waves = issued(4)
    assert waves.on_stage0 == 4
    done(waves, by=0, up_to=1)
    assert waves.on_stage0 == 3
    # What stage 0 said last is still on its way.
    done(waves, by=1, up_to=2)
    assert (waves.on_stage0, len(waves)) == (2, 4)
    assert waves.wave_done(WaveId(1)) == wave_of(1)
    assert (waves.on_stage0, len(waves)) == (2, 3)
    assert waves.wave_done(WaveId(1)) is None


def test_waves_with_chunks_and_waves_of_ends_only_are_told_apart() -> None:
    waves = WavesInFlight()
    assert (waves.any_with_chunks, waves.any_of_ends) == (False, False)
    waves.issue(WaveId(1), wave_of(ended=(7,)))
    assert (waves.any_with_chunks, waves.any_of_ends) == (False, True)
    waves.issue(WaveId(2), wave_of(1, ended=(8,)))
    assert waves.any_with_chunks
    waves.wave_done(WaveId(1))
    assert not waves.any_of_ends


def test_a_stage_died_of_the_first_wave_that_it_had_not_done_or_of_the_one_behind_it() -> None:
    waves = issued(6)
    done(waves, by=0, up_to=5)
    done(waves, by=1, up_to=2)
    waves.broke()
    assert suspected(waves, 1) == {3, 4}


def test_a_stage_did_not_die_of_what_the_stage_before_had_not_done_unless_that_died_too() -> None:
    waves = issued(6)
    done(waves, by=0, up_to=3)
    done(waves, by=1, up_to=2)
    waves.broke()
    assert suspected(waves, 1) == {3}
    assert suspected(waves, 1, 0, 1) == {3, 4}
    assert suspected(waves, 2) == {1, 2}
    assert suspected(issued(0), 1) == set()


def test_without_reports_a_stage_may_have_died_of_whatever_stage_0_passed_on() -> None:
    waves = issued(6, reports=False)
    done(waves, by=0, up_to=5)
    waves.wave_done(WaveId(1))
    waves.broke()
    assert suspected(waves, 1) == suspected(waves, 3) == {2, 3, 4, 5}
    assert suspected(waves, 0) == {6}, "what stage 0 has done is always known"
    assert suspected(waves, 1, 0, 1) == {2, 3, 4, 5, 6}


def test_a_wave_that_proves_to_be_done_after_the_break_was_not_what_a_stage_died_of() -> None:
    waves = issued(3, reports=False)
    done(waves, by=0, up_to=3)
    waves.broke()
    assert waves.wave_done(WaveId(1)) is None, "what it brought is lost all the same"
    assert suspected(waves, 1) == {2, 3}


def test_what_a_later_stage_has_done_the_dead_one_had_done() -> None:
    waves = issued(6)
    done(waves, by=0, up_to=6)
    done(waves, by=2, up_to=3)
    waves.broke()
    assert suspected(waves, 1) == {4, 5}


@pytest.mark.parametrize("late", [True, False])
def test_word_that_comes_after_the_break_still_says_what_it_was_not(late: bool) -> None:
    waves = issued(4)
    done(waves, by=0, up_to=4)
    if late:
        waves.broke()
    done(waves, by=1, up_to=1)
    waves.wave_done(WaveId(1))
    if not late:
        waves.broke()
    assert suspected(waves, 1) == {2, 3}
    assert len(waves) == 0


def test_two_breaks_before_the_pipeline_works_again_lose_the_waves_of_the_first() -> None:
    waves = issued(2)
    waves.broke()
    waves.broke()
    assert suspected(waves, 0) == {1, 2}
    waves.forget_lost(reports=True)
    assert suspected(waves, 0) == set()
    waves.issue(WaveId(3), wave_of(3))
    waves.broke()
    assert suspected(waves, 0) == {3}
