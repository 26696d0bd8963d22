"""Who is charged when a stage died, and for how long that is remembered."""

from __future__ import annotations

from router_support import new_request
from wavepp.core.ids import GrantId, StageIndex, WaveId
from wavepp.core.router.charges import Charges
from wavepp.core.router.requests import FailureKind, RequestRecord, Times
from wavepp.core.router.waves_in_flight import IssuedWave, WavesInFlight
from wavepp.core.waves.types import Chunk

S0 = StageIndex(0)
DIED = frozenset({S0})


def record(name: str) -> RequestRecord:
    return RequestRecord(new_request(name), 1, Times(0.0))


def lost_wave(*grants: int) -> WavesInFlight:
    waves = WavesInFlight()
    chunks = tuple(Chunk(GrantId(g), 0, 8, last=True, snapshot=False, decode=False) for g in grants)
    waves.issue(WaveId(1), IssuedWave(chunks, ()))
    waves.broke()
    return waves


def test_nobody_is_charged_for_a_death_after_the_pipeline_worked_again() -> None:
    charges, before = Charges(attempts_max=9), record("a")
    charges.broke({GrantId(1): before})
    assert charges.take(frozenset(), lost_wave(1)) == [], "a break without a death"
    assert charges.take(DIED, lost_wave(1)) == []


def test_who_runs_in_several_lost_waves_or_on_several_dead_stages_is_charged_once() -> None:
    charges, first, second = Charges(attempts_max=9), record("a"), record("b")
    charges.broke({GrantId(1): first})
    charges.broke({GrantId(2): second})
    taken = charges.take(frozenset({S0, StageIndex(1)}), lost_wave(1, 2))
    assert [r.request for r, _ in taken] == ["a", "b"]


def test_a_charged_request_fails_at_the_limit_or_when_it_ran_alone() -> None:
    charges, request = Charges(attempts_max=2), record("a")
    request.charge()
    assert charges.failure(request, S0, convicted=False) is None
    convicted = charges.failure(request, S0, convicted=True)
    assert convicted is not None
    assert convicted.kind is FailureKind.INTERNAL
    request.charge()
    limited = charges.failure(request, S0, convicted=False)
    assert limited is not None
    assert limited.kind is FailureKind.PIPELINE
