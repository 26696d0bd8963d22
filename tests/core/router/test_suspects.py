"""Requests that a stage may have died of: whom the router suspects, how they are tried alone, and when they fail."""

from __future__ import annotations

import pytest

from router_support import NO_REUSE, Router, only
from wavepp.core.directory.events import Granted
from wavepp.core.ids import StageIndex
from wavepp.core.router import events as router_ev
from wavepp.core.router.requests import PAST_TOKENS, Failure, FailureKind, RequestRecord


class Mesh(Router):
    """Grants whatever is asked for at once; says what runs."""

    def __init__(self, **limits: int) -> None:
        super().__init__(**limits)
        self.epochs = 1

    def tell(self, event: router_ev.Event) -> list[router_ev.Instruction]:
        out = super().tell(event)
        asked = only(router_ev.SendAdmit, out)
        if asked:
            out = out + self.decide(*[Granted(0, NO_REUSE)] * len(asked[-1].attempts), batch=asked[-1])
        return out

    @property
    def running(self) -> list[str]:
        return [str(r.request) for r in self.dispatcher._by_grant.values()]

    def record(self, name: str) -> RequestRecord:
        return next(r for r in self.dispatcher._requests.values() if r.request == name)

    def dies(self, *stages: int) -> list[router_ev.Instruction]:
        self.epochs += 1
        return self.new_epoch(self.epochs, *stages)

    def token(self) -> list[router_ev.Instruction]:
        """The latest wave is done, with a token for each of its last chunks."""
        return self.wave_done(*[7] * len(self.wave.chunks))

    def failures(self, out: list[router_ev.Instruction]) -> list[Failure]:
        return [fail.failure for fail in only(router_ev.Fail, out)]


def made_suspect(*names: str, outputs: int = 9, **limits: int) -> Mesh:
    """All of these were in the wave that stage 1 died of, twice; the first of them runs alone now."""
    mesh = Mesh(**limits)
    mesh.tell(router_ev.PipelineBroken("to submit all at once"))
    for name in names:
        mesh.submit(name, 4, outputs)
    mesh.tell(router_ev.PipelineReady(mesh.dispatcher.epoch))
    for _ in range(2):
        assert mesh.running == list(names)
        mesh.tell(router_ev.StepDone(StageIndex(0), mesh.wave.epoch, mesh.wave.wave))
        mesh.dies(1)
    return mesh


@pytest.mark.parametrize(("reports", "charges"), [(True, [1, 1, 0]), (False, [1, 1, 1])])
def test_only_the_grants_of_the_waves_that_a_stage_can_have_died_of_are_charged(
    reports: bool, charges: list[int]
) -> None:
    mesh = Mesh()
    if reports:
        mesh.dies(0)
    for name in ("a", "b", "c"):
        mesh.submit(name, 16, 9)
    first = mesh.wave
    mesh.tell(router_ev.StepDone(StageIndex(0), first.epoch, first.wave))
    mesh.tell(router_ev.StepDone(StageIndex(0), first.epoch, mesh.wave.wave))
    assert [c.request for c in mesh.wave.chunks] == ["c"]
    mesh.tell(router_ev.StepDone(StageIndex(0), first.epoch, mesh.wave.wave))
    mesh.dies(1)
    assert [mesh.record(n).charges for n in ("a", "b", "c")] == charges


def test_a_break_in_which_no_stage_died_charges_nobody() -> None:
    mesh = Mesh(attempts_max=1)
    mesh.submit("a", 8, 9)
    for _ in range(3):
        assert not mesh.failures(mesh.dies())
    assert (mesh.record("a").charges, mesh.record("a").breaks) == (0, 3)
    mesh.token()
    assert mesh.record("a").breaks == 0, "counted since its last token"


def test_suspects_run_alone_one_after_another_and_nobody_is_admitted_beside_them() -> None:
    mesh = made_suspect("a", "b", "c", outputs=PAST_TOKENS + 1)
    assert mesh.running == ["a"]
    mesh.submit("later", 4)
    for _ in range(PAST_TOKENS):
        assert mesh.running == ["a"]
        mesh.token()
    # It is past the place, and no suspect any more; b waits until nothing else runs, and who came later behind it.
    assert not mesh.record("a").suspect
    assert mesh.running == ["a"]
    mesh.token()
    assert mesh.running == ["b"]
    for _ in range(PAST_TOKENS + 1):
        assert mesh.running == ["b"]
        mesh.token()
    for _ in range(PAST_TOKENS):
        assert mesh.running == ["c"]
        mesh.token()
    assert mesh.running == ["c", "later"]


def test_a_suspect_that_a_stage_dies_of_fails_and_says_how_often_and_who_waited_goes_first() -> None:
    mesh = made_suspect("poison", "innocent")
    mesh.submit("other", 4)
    mesh.tell(router_ev.StepDone(StageIndex(0), mesh.wave.epoch, mesh.wave.wave))
    (failure,) = mesh.failures(mesh.dies(1))
    assert (failure.request, failure.kind) == ("poison", FailureKind.INTERNAL)
    assert "stage 1 ended while it ran this request, for the 3. time" in failure.message
    assert mesh.running == ["other"]
    mesh.submit("newcomer", 4)
    assert mesh.running == ["other"], "it came after the conviction: the suspect's turn is first"
    mesh.token()
    mesh.wave_done()
    assert mesh.running == ["innocent"]


def test_a_suspect_that_gets_its_token_by_prefill_and_kills_by_its_decode_step_is_convicted() -> None:
    mesh = made_suspect("a", "b")
    mesh.token()
    assert mesh.running == ["a"], "one token is not past the place"
    mesh.tell(router_ev.StepDone(StageIndex(0), mesh.wave.epoch, mesh.wave.wave))
    (failure,) = mesh.failures(mesh.dies(1))
    assert failure.request == "a"


def test_a_suspect_is_not_convicted_by_a_break_without_a_death_nor_by_that_of_a_stage_that_did_not_run_it() -> None:
    mesh = made_suspect("a")
    assert not mesh.failures(mesh.dies())
    assert mesh.running == ["a"]
    assert not mesh.failures(mesh.dies(1)), "stage 0 had not done the wave: stage 1 did not have it"
    assert mesh.running == ["a"]
    assert mesh.record("a").charges == 2


def test_charges_are_limited_even_for_who_always_gets_past_the_place() -> None:
    mesh = Mesh(attempts_max=3)
    mesh.submit("a", 4, 99)
    for charge in (1, 2):
        assert not mesh.failures(mesh.dies(0))
        assert mesh.record("a").charges == charge
        for _ in range(PAST_TOKENS):
            mesh.token()
        assert mesh.record("a").suspicion == 0
    (failure,) = mesh.failures(mesh.dies(0))
    assert failure.kind is FailureKind.PIPELINE
    assert "3 times" in failure.message


@pytest.mark.parametrize("end", ["cancel", "token"])
def test_when_a_suspect_is_gone_others_are_admitted_at_once(end: str) -> None:
    mesh = made_suspect("a", outputs=1)
    mesh.submit("later", 4)
    assert mesh.running == ["a"]
    if end == "cancel":
        mesh.stop("a")
    else:
        mesh.token()
    assert mesh.running == ["later"]


def test_a_suspect_waits_until_nothing_runs_and_then_goes_before_those_behind_it() -> None:
    mesh = Mesh()
    mesh.submit("old", 4, 3)
    mesh.submit("bad", 4, 3)
    mesh.record("bad").suspicion = 2
    mesh.tell(router_ev.PipelineBroken("all are queued again"))
    mesh.submit("new", 4)
    mesh.tell(router_ev.PipelineReady(mesh.dispatcher.epoch))
    assert mesh.running == ["old"]
    for _ in range(3):
        assert mesh.running == ["old"]
        mesh.token()
    assert mesh.running == ["bad"]


def test_a_suspect_waits_for_the_last_wave_of_one_that_was_cancelled_for_a_stage_may_die_of_that() -> None:
    mesh = Mesh()
    mesh.submit("gone", 4, 3)
    mesh.submit("bad", 4, 3)
    mesh.record("bad").suspicion = 2
    mesh.tell(router_ev.PipelineBroken("all are queued again"))
    mesh.tell(router_ev.PipelineReady(mesh.dispatcher.epoch))
    wave = mesh.wave
    mesh.stop("gone")
    assert mesh.running == []
    mesh.wave_done(wave=wave)
    assert mesh.running == ["bad"]


def test_a_suspect_that_is_cancelled_while_it_waits_keeps_nobody_waiting() -> None:
    mesh = made_suspect("a", "b")
    mesh.submit("later", 4)
    mesh.stop("b")
    mesh.stop("a")
    assert mesh.running == ["later"]


def test_a_new_router_knows_of_no_suspects() -> None:
    mesh = Mesh()
    mesh.submit("a", 4)
    assert not mesh.failures(mesh.tell(router_ev.PipelineBroken("another router leads")))
    mesh.tell(router_ev.PipelineReady(mesh.dispatcher.epoch))
    assert mesh.record("a").charges == 0
