"""Edges of the mesh as a whole, one at a time: cancels, lengths around a block, etcd unavailable, tenants."""

from __future__ import annotations

import pytest

from sim_support import run_for, simulated_answer
from wavepp.core.ids import RequestId, StageIndex
from wavepp.core.router.requests import FailureKind, RequestOutcome
from wavepp.sim.mesh import SimMesh
from wavepp.sim.mesh_config import MeshConfig

B = 4
SMALL = MeshConfig(stage_blocks=(24, 20, 24))
HYBRID = MeshConfig(stage_blocks=(24, 20), recurrent=(True, False), snapshot_slots=3)


def prompt_of(length: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + length))


def answer(mesh: SimMesh, request: str) -> RequestOutcome:
    return mesh.outcomes[RequestId(request)]


def tokens(outcome: RequestOutcome) -> tuple[int, ...]:
    return tuple(t.token for t in outcome.tokens)


@pytest.mark.parametrize("config", [SMALL, HYBRID], ids=["dense", "hybrid"])
def test_a_request_can_be_cancelled_at_every_moment_of_its_life(config: MeshConfig) -> None:
    moment, done = 0, False
    while not done:
        mesh = SimMesh(config, seed=moment)
        mesh.run()
        mesh.submit("a", prompt_of(30), output_tokens_max=3)
        mesh.submit("b", prompt_of(22), output_tokens_max=2)
        run_for(mesh, moment)
        done = RequestId("a") in mesh.outcomes
        mesh.cancel("a")
        mesh.run()
        mesh.check_nothing_left()
        assert done or mesh.failures[RequestId("a")].kind is FailureKind.CANCELLED
        assert tokens(answer(mesh, "b")) == simulated_answer(prompt_of(22), 2)
        moment += 1
    assert moment > 40


@pytest.mark.parametrize("stage", range(3))
def test_a_stage_can_die_at_every_moment_from_the_start_on(stage: int) -> None:
    attempts = set()
    for moment in range(0, 120, 3):
        mesh = SimMesh(SMALL, seed=moment)
        mesh.submit("a", prompt_of(26), output_tokens_max=4)
        run_for(mesh, moment)
        mesh.kill_stage(stage)
        mesh.run()
        mesh.check_nothing_left()
        assert tokens(answer(mesh, "a")) == simulated_answer(prompt_of(26), 4)
        assert mesh.streamed[RequestId("a")] == list(simulated_answer(prompt_of(26), 4))
        attempts.add(answer(mesh, "a").attempts)
    assert attempts == {1, 2}


@pytest.mark.parametrize("stage", range(3))
def test_a_stage_that_stops_at_any_moment_costs_no_request_an_attempt(stage: int) -> None:
    for moment in range(0, 120, 3):
        mesh = SimMesh(SMALL, seed=moment)
        mesh.submit("a", prompt_of(26), output_tokens_max=4)
        run_for(mesh, moment)
        mesh.stop_stage(stage)
        mesh.submit("b", prompt_of(22), output_tokens_max=2)
        mesh.run()
        mesh.check_nothing_left()
        assert mesh.drains == 1
        for name, prompt, outputs in (("a", prompt_of(26), 4), ("b", prompt_of(22), 2)):
            assert tokens(answer(mesh, name)) == simulated_answer(prompt, outputs)
            assert answer(mesh, name).attempts == 1


@pytest.mark.parametrize("outputs", [1, 2, B, B + 1])
@pytest.mark.parametrize("length", [1, B - 1, B, B + 1, 4 * B - 1, 4 * B, 4 * B + 1])
def test_prompts_around_a_blocks_end_are_reused_but_for_the_last_token(length: int, outputs: int) -> None:
    mesh = SimMesh(SMALL, seed=length)
    for name in ("first", "again"):
        mesh.submit(name, prompt_of(length), output_tokens_max=outputs)
        mesh.run()
        assert tokens(answer(mesh, name)) == simulated_answer(prompt_of(length), outputs)
    assert answer(mesh, "first").cached_tokens == 0
    assert answer(mesh, "again").cached_tokens == (length - 1) // B * B
    mesh.check_nothing_left()


def test_the_next_turn_of_a_conversation_reuses_the_prompt_and_the_answer() -> None:
    mesh = SimMesh(SMALL, seed=1)
    mesh.submit("a", prompt_of(10), output_tokens_max=7)
    mesh.run()
    conversation = prompt_of(10) + tokens(answer(mesh, "a"))
    mesh.submit("b", (*conversation, 5, 6))
    mesh.run()
    assert answer(mesh, "b").cached_tokens == 16, "17 tokens, of which the last has no cache entry"
    assert tokens(answer(mesh, "b")) == simulated_answer((*conversation, 5, 6), 1)


@pytest.mark.parametrize("recurrent", [(True, True), (False, True)])
def test_stages_with_recurrent_layers_reuse_what_was_kept_at_the_prompts_end(recurrent: tuple[bool, ...]) -> None:
    mesh = SimMesh(MeshConfig(stage_blocks=(32, 32), recurrent=recurrent, alignment_blocks=2), seed=2)
    mesh.submit("a", prompt_of(30))
    mesh.run()
    mesh.submit("b", (*prompt_of(30), 7, 8, 9))
    mesh.run()
    assert answer(mesh, "b").cached_tokens == 24
    assert tokens(answer(mesh, "b")) == simulated_answer((*prompt_of(30), 7, 8, 9), 1)
    mesh.check_nothing_left()


def test_tenants_share_nothing() -> None:
    mesh = SimMesh(SMALL, seed=3)
    for i, salt in enumerate((None, "", "blue", "red")):
        mesh.submit(f"cold{i}", prompt_of(17), salt=salt)
        mesh.run()
        assert answer(mesh, f"cold{i}").cached_tokens == 0, salt
        assert answer(mesh, f"cold{i}").reuse.longest_any_tokens == 0
    mesh.submit("warm", prompt_of(17), salt="red")
    mesh.run()
    assert answer(mesh, "warm").cached_tokens == 16


@pytest.mark.parametrize("stage", range(3))
def test_output_that_is_not_finite_on_any_stage_fails_its_request_and_leaves_no_cache(stage: int) -> None:
    mesh = SimMesh(SMALL, seed=4)
    mesh.poisoned[RequestId("bad")] = StageIndex(stage)
    mesh.submit("bad", prompt_of(40))
    mesh.submit("good", prompt_of(12, first=500))
    mesh.run()
    failure = mesh.failures[RequestId("bad")]
    assert (failure.kind, failure.message) == (FailureKind.INTERNAL, f"stage {stage}: output is not finite")
    assert tokens(answer(mesh, "good")) == simulated_answer(prompt_of(12, first=500), 1)
    mesh.submit("again", prompt_of(40))
    mesh.run()
    assert answer(mesh, "again").cached_tokens == 0
    assert tokens(answer(mesh, "again")) == simulated_answer(prompt_of(40), 1)
    mesh.check_nothing_left()


def test_while_etcd_is_unavailable_running_work_finishes_and_new_grants_wait() -> None:
    mesh = SimMesh(SMALL, seed=5)
    mesh.submit("running", prompt_of(30), output_tokens_max=6)
    mesh.run(until=lambda: mesh.dispatcher.running == 1)
    epoch = mesh.dispatcher.epoch
    mesh.etcd_up = False
    mesh.submit("waiting", prompt_of(9, first=300))
    run_for(mesh, 2000)
    assert tokens(answer(mesh, "running")) == simulated_answer(prompt_of(30), 6)
    assert RequestId("waiting") not in mesh.outcomes
    mesh.etcd_up = True
    mesh.run()
    assert tokens(answer(mesh, "waiting")) == simulated_answer(prompt_of(9, first=300), 1)
    assert answer(mesh, "waiting").waited_for == (None, "directory")
    assert mesh.dispatcher.epoch == epoch, "nothing restarted"
    mesh.check_nothing_left()


def test_a_slow_ledger_holds_up_grants_and_two_rounds_at_most_wait_for_it() -> None:
    mesh = SimMesh(SMALL, seed=6)
    mesh.run()
    mesh.frozen.add("ledger")
    for i in range(5):
        mesh.submit(f"r{i}", prompt_of(6, first=100 * i))
        mesh.run()
    assert mesh.admission.rounds_in_flight == 2
    assert (mesh.dispatcher.running, mesh.dispatcher.queued) == (0, 3)
    mesh.frozen.clear()
    mesh.run()
    assert [mesh.granted_in[RequestId(f"r{i}")] for i in range(5)] == [1, 2, 3, 3, 3]
    mesh.check_nothing_left()


def test_an_admission_stream_that_breaks_while_a_record_is_written_leaves_no_record() -> None:
    mesh = SimMesh(SMALL, seed=7)
    mesh.run()
    mesh.frozen.add("ledger")
    mesh.submit("a", prompt_of(6))
    mesh.run()
    mesh.cut_admission()
    mesh.frozen.clear()
    mesh.run()
    assert tokens(answer(mesh, "a")) == simulated_answer(prompt_of(6), 1)
    mesh.check_nothing_left()
    assert not mesh.admission._ledger._records


def test_a_request_of_higher_priority_is_granted_before_those_that_wait() -> None:
    mesh = SimMesh(MeshConfig(stage_blocks=(8, 8), running_max=1), seed=8)
    mesh.submit("first", prompt_of(20))
    mesh.run(until=lambda: mesh.dispatcher.running == 1)
    mesh.submit("low", prompt_of(8))
    mesh.submit("high", prompt_of(8, first=50), priority=1)
    mesh.run()
    assert mesh.finished_order == ["first", "high", "low"]


def test_requests_that_fill_a_stage_wait_in_order_and_one_that_never_fits_fails() -> None:
    mesh = SimMesh(MeshConfig(stage_blocks=(16, 6)), seed=9)
    mesh.submit("never", prompt_of(25))
    for i in range(6):
        mesh.submit(f"r{i}", prompt_of(20, first=100 * i))
    mesh.run()
    failure = mesh.failures[RequestId("never")]
    assert failure.kind is FailureKind.NEVER_FITS
    assert "stage 1" in failure.message
    assert mesh.finished_order == [f"r{i}" for i in range(6)]
    assert answer(mesh, "r5").waited_for == (1, "kv")
    mesh.check_nothing_left()
