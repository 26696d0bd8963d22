"""Random work, random interleavings, random faults: every answer right, nothing left behind."""

from __future__ import annotations

import pytest

from sim_support import check_answers, check_first_come_first_served, run_random_work
from wavepp.core.router.requests import FailureKind
from wavepp.sim.mesh import SimMesh
from wavepp.sim.mesh_config import MeshConfig

UNEQUAL = MeshConfig(stage_blocks=(40, 32, 64, 40))
HYBRID = MeshConfig(stage_blocks=(40, 64, 48), recurrent=(False, True, True), alignment_blocks=2)


@pytest.mark.parametrize("seed", range(8))
def test_every_answer_is_right_and_nothing_is_left_behind(seed: int) -> None:
    mesh = SimMesh(MeshConfig(stage_blocks=(64, 48, 64)), seed)
    wanted = run_random_work(mesh, 60)
    check_answers(mesh, wanted)
    check_first_come_first_served(mesh, wanted)
    mesh.check_nothing_left()
    assert len(mesh.outcomes) > 20
    assert any(o.cached_tokens for o in mesh.outcomes.values())


@pytest.mark.parametrize("seed", range(16))
def test_faults_cost_time_but_no_answer(seed: int) -> None:
    mesh = SimMesh(UNEQUAL, seed)
    wanted = run_random_work(mesh, 60, faults=10)
    check_answers(mesh, wanted)
    mesh.check_nothing_left()


@pytest.mark.parametrize("seed", range(6))
def test_stages_with_recurrent_layers_restore_the_right_states(seed: int) -> None:
    mesh = SimMesh(HYBRID, seed)
    wanted = run_random_work(mesh, 60, faults=6)
    check_answers(mesh, wanted)
    mesh.check_nothing_left()


@pytest.mark.parametrize("seed", range(6))
def test_output_that_is_not_finite_fails_its_request_alone(seed: int) -> None:
    mesh = SimMesh(UNEQUAL, seed)
    wanted = run_random_work(mesh, 60, faults=4, poisoned=0.2)
    check_answers(mesh, wanted)
    mesh.check_nothing_left()
    assert any(f.kind is FailureKind.INTERNAL for f in mesh.failures.values())


@pytest.mark.parametrize("seed", range(4))
def test_equal_priorities_are_served_in_the_order_of_arrival(seed: int) -> None:
    mesh = SimMesh(MeshConfig(stage_blocks=(20, 24), running_max=3), seed)
    wanted = run_random_work(mesh, 60, cancels=0.1, priorities=(0, 0, 5))
    check_answers(mesh, wanted)
    check_first_come_first_served(mesh, wanted)
    assert sum(o.waits for o in mesh.outcomes.values()) > 5, "room was short"
