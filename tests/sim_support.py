"""Random work and random faults for the simulated mesh, and what must hold afterwards."""

from __future__ import annotations

import random
from dataclasses import dataclass

from wavepp.core.ids import RequestId, StageIndex
from wavepp.core.router.requests import FailureKind
from wavepp.sim.executor import VOCABULARY, next_fingerprint
from wavepp.sim.mesh import SimMesh

Prompt = tuple[int, ...]


def simulated_answer(prompt: Prompt, count: int) -> tuple[int, ...]:
    """What the simulated model answers, from the prompt alone."""
    fingerprint = 0
    for token in prompt:
        fingerprint = next_fingerprint(fingerprint, token)
    out = []
    for _ in range(count):
        out.append(fingerprint % VOCABULARY)
        fingerprint = next_fingerprint(fingerprint, out[-1])
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request, and what it must answer."""

    prompt: Prompt
    outputs: int
    salt: str | None
    priority: int

    @property
    def expected(self) -> tuple[int, ...]:
        return simulated_answer(self.prompt, self.outputs)


def submit(mesh: SimMesh, name: str, wanted: Wanted) -> None:
    mesh.submit(name, wanted.prompt, output_tokens_max=wanted.outputs, salt=wanted.salt, priority=wanted.priority)


def run_for(mesh: SimMesh, messages: int) -> None:
    """Deliver so many messages, or until nothing is under way."""
    stop_at = mesh.step + messages
    mesh.run(until=lambda: mesh.step >= stop_at)


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
    mesh: SimMesh,
    count: int,
    *,
    faults: int = 0,
    cancels: float = 0.2,
    poisoned: float = 0.0,
    priorities: tuple[int, ...] = (0,),
) -> dict[str, Wanted]:
    """Submit `count` requests while the mesh runs, cancel some, poison some, break something `faults` times."""
    rng = random.Random(mesh.random.random())
    wanted: dict[str, Wanted] = {}
    fault_at = {rng.randrange(count) for _ in range(faults)}
    for i, prompt in enumerate(prompts_with_shared_prefixes(rng, count)):
        name = f"r{i}"
        # Half of the requests are another tenant's.
        salt = "blue" if i % 2 else None
        wanted[name] = Wanted(prompt, rng.choice((1, 1, 1, 2, 6)), salt, rng.choice(priorities))
        if rng.random() < poisoned:
            mesh.poisoned[RequestId(name)] = StageIndex(rng.randrange(mesh.config.stages))
        submit(mesh, name, wanted[name])
        run_for(mesh, rng.randrange(60))
        if rng.random() < cancels:
            mesh.cancel(f"r{rng.randrange(i + 1)}")
        if i in fault_at:
            break_something(mesh, rng, wanted)
    mesh.run()
    return wanted


def break_something(mesh: SimMesh, rng: random.Random, wanted: dict[str, Wanted]) -> None:
    """One fault, drawn at random."""
    stages = mesh.config.stages
    match rng.randrange(9):
        case 0:
            mesh.kill_stage(rng.randrange(stages))
        case 1 if stages > 1:
            mesh.cut_link(rng.randrange(stages - 1))
        case 2:
            mesh.cut_rounds(rng.randrange(stages))
        case 3:
            mesh.restart_router()
            # What their clients do who have no answer.
            for name, request in wanted.items():
                if RequestId(name) not in mesh.outcomes and RequestId(name) not in mesh.failures:
                    mesh.streamed.pop(RequestId(name), None)
                    submit(mesh, name, request)
        case 4:
            mesh.restart_directory()
        case 5:
            mesh.cut_admission()
        case 7:
            mesh.stop_stage(rng.randrange(stages))
        case 6:
            mesh.etcd_up = False
            run_for(mesh, rng.randrange(200))
            mesh.etcd_up = True
        case _:
            slow = rng.choice(("ledger", "decide", "admit", f"rounds:{rng.randrange(stages)}", f"jobs:{stages - 1}"))
            mesh.frozen.add(slow)
            run_for(mesh, rng.randrange(200))
            mesh.frozen.discard(slow)


def check_answers(mesh: SimMesh, wanted: dict[str, Wanted]) -> None:
    """Every request has its answer, but for those that were cancelled or poisoned; nobody has two."""
    for name, request in wanted.items():
        outcome = mesh.outcomes.get(RequestId(name))
        if outcome is None:
            poisoned = RequestId(name) in mesh.poisoned
            allowed = {FailureKind.CANCELLED, FailureKind.INTERNAL} if poisoned else {FailureKind.CANCELLED}
            assert mesh.failures[RequestId(name)].kind in allowed, mesh.failures[RequestId(name)]
            continue
        assert RequestId(name) not in mesh.failures
        assert RequestId(name) not in mesh.poisoned, "a poisoned request has no answer"
        assert tuple(t.token for t in outcome.tokens) == request.expected
        assert tuple(mesh.streamed[RequestId(name)]) == request.expected, "each token is streamed once, in order"
        assert outcome.times.arrived <= outcome.times.asked <= outcome.times.granted <= outcome.times.first_token
        assert outcome.cached_tokens <= outcome.prompt_tokens == len(request.prompt)
        if outcome.attempts == 1:
            assert outcome.cached_tokens < outcome.prompt_tokens
            assert outcome.cached_tokens + outcome.computed_tokens == outcome.prompt_tokens


def check_first_come_first_served(mesh: SimMesh, wanted: dict[str, Wanted]) -> None:
    """Nobody was granted in an earlier batch than one of the same priority that came before. Holds where nothing was
    asked for twice but for lack of room."""
    for priority in {w.priority for w in wanted.values()}:
        batches = [
            mesh.granted_in[RequestId(n)] for n, w in wanted.items() if w.priority == priority and n in mesh.granted_in
        ]
        assert batches == sorted(batches), f"priority {priority}"
