"""Races that the protocol closes. Each scenario is run with its rule, and again with the rule taken out: the second run
must go wrong, or the scenario would not show anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sim_support import simulated_answer
from wavepp.core.errors import WaveppError
from wavepp.core.ids import GrantId, PipelineEpoch, RequestId, grant_id
from wavepp.core.router import asked_batches
from wavepp.core.stage import events as stage_ev
from wavepp.core.stage import grants as stage_grants
from wavepp.core.stage.grants import GrantAction, GrantEvent, GrantState
from wavepp.core.stage.sequencer import JOBS_AHEAD, Sequencer
from wavepp.sim.mesh import SimMesh
from wavepp.sim.mesh_config import MeshConfig

PROMPT = tuple(range(100, 140))
OTHER = tuple(range(500, 530))


def answered(mesh: SimMesh, request: str, prompt: tuple[int, ...]) -> bool:
    outcome = mesh.outcomes.get(RequestId(request))
    return outcome is not None and tuple(t.token for t in outcome.tokens) == simulated_answer(prompt, 1)


def ran_well(scenario: Callable[[], bool]) -> bool:
    """False when the answer was wrong or missing, or when an invariant broke on the way."""
    try:
        return scenario()
    except WaveppError:
        return False


def change_rule(
    monkeypatch: pytest.MonkeyPatch, state: GrantState, event: GrantEvent, to: GrantState, action: GrantAction
) -> None:
    monkeypatch.setitem(stage_grants.TRANSITIONS, (state, event), (to, action))


# ---- a wave overtakes the end of its admission round ----


def wave_overtakes_its_round() -> bool:
    """Stage 1 hears nothing more of the round after its Prepare; the wave arrives all the same."""
    mesh = SimMesh(MeshConfig(stage_blocks=(64, 64)), seed=1)
    mesh.run()
    mesh.submit("a", PROMPT)
    mesh.run(until=lambda: mesh.dispatcher.running == 1)
    mesh.frozen.add("rounds:1")
    mesh.run()
    done_while_the_round_was_open = answered(mesh, "a", PROMPT)
    mesh.frozen.clear()
    mesh.run()
    mesh.check_nothing_left()
    return done_while_the_round_was_open


def test_a_wave_that_overtakes_the_end_of_its_round_runs() -> None:
    assert wave_overtakes_its_round()


def test_it_would_not_if_grants_had_to_be_committed_by_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    change_rule(monkeypatch, GrantState.PREPARED, GrantEvent.CHUNK, GrantState.PREPARED, GrantAction.REFUSE)
    assert not ran_well(wave_overtakes_its_round)


# ---- a grant's owner dies while its wave is queued on a stage ----


def directory_dies_while_a_wave_is_queued() -> bool:
    """A new directory that has lost track of a grant tells the stages to drop it; its wave is queued on stage 1."""
    mesh = SimMesh(MeshConfig(stage_blocks=(64, 64)), seed=2)
    mesh.run()
    mesh.frozen.add("jobs:1")
    mesh.submit("a", PROMPT)
    mesh.run()
    (grant,) = (g.grant for g in mesh.stages[1].sequencer.grants.live())
    mesh.send("rounds:1", lambda: mesh.tell_stage(1, stage_ev.AbortArrived((grant,))))
    # Somebody else would get the blocks.
    mesh.submit("b", OTHER)
    mesh.frozen.clear()
    mesh.run()
    mesh.check_nothing_left()
    return answered(mesh, "a", PROMPT) and answered(mesh, "b", OTHER)


def test_a_grant_whose_wave_is_queued_outlives_its_directory() -> None:
    assert directory_dies_while_a_wave_is_queued()


def test_it_would_not_if_the_directory_could_free_it(monkeypatch: pytest.MonkeyPatch) -> None:
    change_rule(monkeypatch, GrantState.RUNNING, GrantEvent.ABORT, GrantState.ENDED, GrantAction.RELEASE)
    assert not ran_well(directory_dies_while_a_wave_is_queued)


def overdue_jobs(mesh: SimMesh) -> int:
    """The router dies while waves are queued on stage 1 behind those that the executor has; another moves the epoch.
    Returns how many jobs of the old epoch stage 1 was told to run after it had heard of the new one."""
    mesh.run()
    mesh.frozen.add("jobs:1")
    for i in range(6):
        mesh.submit(f"r{i}", tuple(range(1000 * i, 1000 * i + 16)))
    mesh.run()
    sequencer = mesh.stages[1].sequencer
    assert sequencer.waves_queued > JOBS_AHEAD, "waves wait behind those that the executor has"
    overdue = 0
    handle = sequencer.handle

    def watched(event: stage_ev.Event) -> list[stage_ev.Instruction]:
        nonlocal overdue
        instructions = handle(event)
        overdue += sum(1 for i in instructions if isinstance(i, stage_ev.RunJob) and i.epoch < sequencer.epoch)
        return instructions

    sequencer.handle = watched  # type: ignore[method-assign]
    old_epoch = sequencer.epoch
    mesh.restart_router()
    mesh.run(until=lambda: sequencer.epoch > old_epoch)
    mesh.frozen.clear()
    mesh.run()
    assert mesh.dispatcher.epoch > old_epoch
    return overdue


def test_queued_waves_of_a_dead_router_are_never_run() -> None:
    mesh = SimMesh(MeshConfig(stage_blocks=(64, 64, 64)), seed=3)
    assert overdue_jobs(mesh) == 0
    mesh.check_nothing_left()


def test_they_would_be_if_an_epoch_did_not_drop_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_queue(self: Sequencer) -> None:
        for record in self.grants.live():
            self._end(record.grant, GrantEvent.FENCE)

    monkeypatch.setattr(Sequencer, "_fence", keep_queue)
    assert overdue_jobs(SimMesh(MeshConfig(stage_blocks=(64, 64, 64)), seed=3)) > 0


# ---- a retried request meets its own earlier attempt's chunk ----


def retry_meets_earlier_chunk() -> bool:
    """The client gives up and comes back with the same request while its first attempt's chunk is still on a link."""
    mesh = SimMesh(MeshConfig(stage_blocks=(64, 64)), seed=4)
    mesh.run()
    mesh.frozen.add("link:0")
    mesh.submit("a", PROMPT)
    mesh.run()
    mesh.cancel("a")
    mesh.submit("a", PROMPT)
    mesh.run()
    mesh.frozen.clear()
    mesh.run()
    mesh.check_nothing_left()
    return answered(mesh, "a", PROMPT)


def test_a_retried_request_is_not_confused_by_its_earlier_chunk() -> None:
    assert retry_meets_earlier_chunk()


def test_it_would_be_if_grant_ids_were_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def reused(epoch: PipelineEpoch, counter: int) -> GrantId:
        return grant_id(epoch, 1)

    monkeypatch.setattr(asked_batches, "grant_id", reused)
    assert not ran_well(retry_meets_earlier_chunk)


# ---- a stage dies with waves in flight ----


@pytest.mark.parametrize("seed", range(8))
def test_a_stage_that_dies_with_six_waves_in_flight_comes_back_empty(seed: int) -> None:
    mesh = SimMesh(MeshConfig(stage_blocks=(256, 256, 256, 256)), seed)
    mesh.run()
    mesh.frozen.add("jobs:2")
    prompts = {f"r{i}": tuple(range(1000 * i, 1000 * i + 48)) for i in range(8)}
    for name, prompt in prompts.items():
        mesh.submit(name, prompt)
    mesh.run()
    assert mesh.dispatcher.waves_in_flight >= 6
    old_epoch = mesh.dispatcher.epoch
    mesh.kill_stage(2)
    fresh = mesh.stages[2].sequencer
    assert fresh.cache.usage()["kv"].free == 256
    mesh.frozen.clear()
    mesh.run()
    assert mesh.dispatcher.epoch > old_epoch
    for name, prompt in prompts.items():
        assert answered(mesh, name, prompt)
        assert len(mesh.streamed[RequestId(name)]) == 1, "answered once"
    assert any(o.attempts > 1 for o in mesh.outcomes.values())
    mesh.check_nothing_left()
