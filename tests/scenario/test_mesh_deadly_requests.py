"""Requests that a stage dies of whenever it runs them, or that break its stream: they fail, and nobody else does."""

from __future__ import annotations

from functools import partial

import pytest

from sim_support import Wanted, break_something, check_answers, run_for, submit
from wavepp.core.ids import RequestId, StageIndex
from wavepp.core.router.dispatcher import UNANSWERED_ALONE_MAX
from wavepp.core.router.requests import FailureKind
from wavepp.sim.mesh import SimMesh
from wavepp.sim.mesh_config import MeshConfig

POISON = RequestId("poison")
ROOM = MeshConfig(stage_blocks=(256, 256, 256), attempts_max=8)
DEATHS_MAX = 3
"""Charged once, charged twice, convicted."""


def innocents(count: int, outputs: int) -> dict[str, Wanted]:
    return {f"ok{i}": Wanted(tuple(range(1000 * i, 1000 * i + 60)), outputs, None, 0) for i in range(count)}


def has_tokens(mesh: SimMesh, count: int) -> bool:
    return len(mesh.streamed.get(POISON, [])) > count


@pytest.mark.parametrize("outputs", [1, 30])
@pytest.mark.parametrize("stage", range(3))
def test_six_that_run_beside_a_deadly_one_are_answered_and_it_fails_after_three_deaths(
    stage: int, outputs: int
) -> None:
    for seed, place in enumerate((0, 3, 6)):
        mesh = SimMesh(ROOM, seed)
        mesh.run()
        mesh.deadly[POISON] = StageIndex(stage)
        wanted = innocents(6, outputs)
        for i, (name, request) in enumerate(wanted.items()):
            if i == place:
                mesh.submit(POISON, tuple(range(90_000, 90_020)), output_tokens_max=outputs)
            submit(mesh, name, request)
        if place == 6:
            mesh.submit(POISON, tuple(range(90_000, 90_020)), output_tokens_max=outputs)
        mesh.run()
        failure = mesh.failures[POISON]
        assert failure.kind is FailureKind.INTERNAL
        assert f"stage {stage} ended while it ran this request" in failure.message
        assert mesh.deaths <= DEATHS_MAX, f"seed {seed}"
        check_answers(mesh, wanted)
        mesh.check_nothing_left()


def test_a_request_that_becomes_deadly_while_it_decodes_fails_and_the_others_do_not() -> None:
    for seed in range(3):
        mesh = SimMesh(ROOM, seed)
        mesh.run()
        wanted = innocents(5, 30)
        for name, request in wanted.items():
            submit(mesh, name, request)
        mesh.submit(POISON, tuple(range(90_000, 90_020)), output_tokens_max=30)
        mesh.run(until=partial(has_tokens, mesh, 8))
        mesh.deadly[POISON] = StageIndex(1)
        mesh.run()
        assert mesh.failures[POISON].kind is FailureKind.INTERNAL
        assert mesh.deaths <= DEATHS_MAX, f"seed {seed}"
        check_answers(mesh, wanted)
        mesh.check_nothing_left()


def test_several_deadly_requests_in_a_busy_mesh_all_fail_and_nobody_else_does_nor_waits_for_ever() -> None:
    for seed in range(4):
        mesh = SimMesh(MeshConfig(stage_blocks=(64, 48, 64), attempts_max=8), seed)
        mesh.run()
        wanted: dict[str, Wanted] = {}
        for i in range(40):
            name = f"r{i}"
            wanted[name] = Wanted(tuple(range(50 * i, 50 * i + 20 + i % 7)), 1 + i % 4, None, 0)
            if i % 10 == 4:
                mesh.deadly[RequestId(name)] = StageIndex(i % 3)
            submit(mesh, name, wanted[name])
            run_for(mesh, mesh.random.randrange(80))
        mesh.run()
        for name in mesh.deadly:
            assert mesh.failures[name].kind is FailureKind.INTERNAL, f"seed {seed}"
            del wanted[name]
        check_answers(mesh, wanted)
        assert mesh.deaths <= DEATHS_MAX * len(mesh.deadly), f"seed {seed}"
        mesh.check_nothing_left()


def test_deadly_requests_among_other_faults_harm_nobody_else() -> None:
    for seed in range(4):
        mesh = SimMesh(MeshConfig(stage_blocks=(64, 48, 64), attempts_max=50), seed)
        wanted: dict[str, Wanted] = {}
        for i in range(30):
            name = f"r{i}"
            wanted[name] = Wanted(tuple(range(50 * i, 50 * i + 20)), 1 + i % 3, None, 0)
            if i % 10 == 4:
                mesh.deadly[RequestId(name)] = StageIndex(i % 3)
            submit(mesh, name, wanted[name])
            run_for(mesh, mesh.random.randrange(60))
            if mesh.random.random() < 0.2:
                break_something(mesh, mesh.random, wanted)
        mesh.run()
        for name in mesh.deadly:
            assert name in mesh.failures, f"seed {seed}"
            del wanted[name]
        check_answers(mesh, wanted)
        mesh.check_nothing_left()


def test_a_request_whose_prepare_breaks_the_stream_fails_after_some_tries_and_the_others_are_answered() -> None:
    for seed in range(6):
        mesh = SimMesh(ROOM, seed)
        mesh.run()
        mesh.indecipherable[POISON] = StageIndex(seed % 3)
        wanted = innocents(6, 4)
        for i, (name, request) in enumerate(wanted.items()):
            if i == seed:
                mesh.submit(POISON, tuple(range(90_000, 90_020)))
            submit(mesh, name, request)
        mesh.run()
        assert mesh.failures[POISON].kind is FailureKind.INTERNAL
        assert f"stage {seed % 3} did not answer" in mesh.failures[POISON].message
        assert mesh.rounds_broken <= UNANSWERED_ALONE_MAX + 2, "asked for with others once or twice, then alone"
        check_answers(mesh, wanted)
        mesh.check_nothing_left()


@pytest.mark.parametrize("silent", ["rounds", "answers"])
def test_a_stage_that_does_not_answer_a_round_holds_it_up_until_its_time_is_over(silent: str) -> None:
    mesh = SimMesh(ROOM, 1)
    mesh.run()
    wanted = innocents(4, 3)
    mesh.frozen.add(f"{silent}:1")
    for name, request in wanted.items():
        submit(mesh, name, request)
    mesh.run()
    assert not mesh.outcomes
    # What waits on a stream that is given up is lost with it.
    mesh.time_out_rounds()
    mesh.frozen.clear()
    mesh.run()
    check_answers(mesh, wanted)
    assert all(outcome.attempts == 1 for outcome in mesh.outcomes.values())
    mesh.check_nothing_left()
