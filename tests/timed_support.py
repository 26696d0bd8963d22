"""A deployment and some prompts for tests in virtual time."""

from __future__ import annotations

import random

from wavepp.core.waves.policy_factory import PolicyName
from wavepp.profiles.profile import Profile
from wavepp.sim.keyed import KeyedAsk, chain_keys
from wavepp.sim.timed_mesh import TimedSetup

BLOCK = 512

PROFILE = Profile(
    name="test",
    derived="made up for tests",
    measured_stages=8,
    launch_ms=6.0,
    token_us=18.0,
    pair_ps=70.0,
    hop_ms=1.0,
    admission_ms=5.0,
    wave_tokens_max=16_384,
    wave_tokens_min=8_192,
    pool_tokens=3_000_000,
)


def setup(policy: PolicyName = "mpu", *, stages: int = 8, pool_tokens: int = 0, validate: bool = False) -> TimedSetup:
    return TimedSetup(PROFILE, policy, BLOCK, stages=stages, pool_tokens=pool_tokens, validate=validate)


def ask(number: int, shared_blocks: int, prompt_tokens: int, document: int = 0) -> KeyedAsk:
    """A prompt that begins with `shared_blocks` of a document; the rest is its own."""
    blocks = prompt_tokens // BLOCK
    base = 1_000_000 * (number + 1_000)
    ids = [*(1_000 * document + i for i in range(shared_blocks)), *range(base, base + blocks - shared_blocks)]
    return KeyedAsk(prompt_tokens, chain_keys(ids), number, "warm" if shared_blocks else "cold")


def random_arrivals(count: int, every_ms: float, seed: int, longest: int = 40) -> list[tuple[float, KeyedAsk]]:
    """Prompts that share parts of a few documents, in about so regular intervals."""
    draw = random.Random(seed)
    time_ms, arrivals = 0.0, []
    for number in range(count):
        time_ms += 2.0 * every_ms * draw.random()
        shared = draw.randrange(longest // 2)
        tokens = BLOCK * shared + draw.randrange(1, BLOCK * longest // 2)
        arrivals.append((time_ms, ask(number, shared, tokens, draw.randrange(6))))
    return arrivals
