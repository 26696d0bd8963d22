"""Random work, random interleavings, random faults: every answer right, nothing left behind."""

from __future__ import annotations

import random

import pytest
from wavepp.core.ids import RequestId
from wavepp.sim.mesh import MeshConfig, SimMesh, expected_tokens

Prompt = tuple[int, ...]


def prompts_with_shared_prefixes(rng: random.Random, count: int, shared: int = 24, longest: int = 60) -> list[Prompt]:
    """A quarter and more of the tokens are shared: a few stems, and tails of their own."""
    stems = [tuple(rng.randrange(1000) for _ in range(shared)) for _ in range(3)]
    out = []
    for _ in range(count):
        stem = rng.choice(stems)[: rng.randrange(shared + 1)]
        tail = tuple(rng.randrange(1000) for _ in range(rng.randrange(1, longest - shared)))
        out.append(stem + tail)
    return out


def run_random_work(
    mesh: SimMesh, count: int, *, faults: int = 0, cancels: float = 0.2
) -> dict[str, tuple[Prompt, int]]:
    """Submit `count` requests while the mesh runs, cancel some, break something `faults` times."""
    rng = random.Random(mesh.random.random())
    wanted: dict[str, tuple[Prompt, int]] = {}
    fault_at = {rng.randrange(count) for _ in range(faults)}
    for i, prompt in enumerate(prompts_with_shared_prefixes(rng, count)):
        name, outputs = f"r{i}", rng.choice((1, 1, 1, 2, 6))
        wanted[name] = (prompt, outputs)
        mesh.submit(name, prompt, output_tokens_max=outputs, salt=salt_of(name))
        stop_at = mesh.step + rng.randrange(60)
        mesh.run(until=lambda stop_at=stop_at: mesh.step >= stop_at)  # type: ignore[misc]
        if rng.random() < cancels:
            mesh.cancel(f"r{rng.randrange(i + 1)}")
        if i in fault_at:
            break_something(mesh, rng, wanted)
    mesh.run()
    return wanted


def salt_of(name: str) -> str | None:
    """Half of the requests are another tenant's."""
    return "blue" if int(name[1:]) % 2 else None


def break_something(mesh: SimMesh, rng: random.Random, wanted: dict[str, tuple[Prompt, int]]) -> None:
    """One fault, drawn at random."""
    stages = mesh.config.stages
    match rng.randrange(5):
        case 0:
            mesh.kill_stage(rng.randrange(stages))
        case 1 if stages > 1:
            mesh.cut_link(rng.randrange(stages - 1))
        case 2:
            mesh.cut_rounds(rng.randrange(stages))
        case 3:
            mesh.restart_router()
            # What their clients do who have no answer.
            for name, (prompt, outputs) in wanted.items():
                if RequestId(name) not in mesh.outcomes and RequestId(name) not in mesh.failures:
                    mesh.streamed.pop(RequestId(name), None)
                    mesh.submit(name, prompt, output_tokens_max=outputs, salt=salt_of(name))
        case _:
            mesh.restart_directory()


def check_answers(mesh: SimMesh, wanted: dict[str, tuple[Prompt, int]]) -> None:
    for name, (prompt, outputs) in wanted.items():
        outcome = mesh.outcomes.get(RequestId(name))
        if outcome is None:
            assert mesh.failures[RequestId(name)].kind.value == "cancelled"
            continue
        expected = expected_tokens(prompt, outputs)
        assert tuple(t.token for t in outcome.tokens) == expected
        assert tuple(mesh.streamed[RequestId(name)]) == expected, "each token is streamed once, in order"


@pytest.mark.parametrize("seed", range(12))
def test_every_answer_is_right_and_nothing_is_left_behind(seed: int) -> None:
    mesh = SimMesh(MeshConfig(stage_blocks=(64, 48, 64)), seed)
    wanted = run_random_work(mesh, 60)
    check_answers(mesh, wanted)
    mesh.check_nothing_left()
    assert len(mesh.outcomes) > 20
    assert any(o.cached_tokens for o in mesh.outcomes.values())


@pytest.mark.parametrize("seed", range(24))
def test_faults_cost_time_but_no_answer(seed: int) -> None:
    mesh = SimMesh(MeshConfig(stage_blocks=(40, 32, 64, 40)), seed)
    wanted = run_random_work(mesh, 60, faults=8)
    check_answers(mesh, wanted)
    mesh.check_nothing_left()
    assert mesh.etcd_epoch > 1
