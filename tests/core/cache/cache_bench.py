"""A stage's cache on the bench: prompts are written as one letter a block."""

from __future__ import annotations

from dataclasses import dataclass

from wavepp.core.cache.stage_cache import StageCache
from wavepp.core.cache.types import CacheShape, KeyWindow, Missing, NeedKeys, Never, PoolSizes, Prepared
from wavepp.core.ids import GrantId, PrefixKey
from wavepp.core.keys import Namespace, key_at, key_count, prefix_keys
from wavepp.core.tokens import encode_tokens

B = 4
NAMESPACE = Namespace("model-a", "bf16", B, None, None)
DENSE = CacheShape(B, B, recurrent=False, sizes=PoolSizes(10), pins_max_blocks=10)
HYBRID = CacheShape(B, B, recurrent=True, sizes=PoolSizes(10, 3, 3), pins_max_blocks=10)


def keys_of(name: str) -> bytes:
    """Packed keys of a prompt with one letter for each block."""
    return prefix_keys(NAMESPACE, encode_tokens(ord(letter) for letter in name for _ in range(B)))


def key_of(name: str) -> PrefixKey:
    """The key of the last block of a prompt."""
    return key_at(keys_of(name), len(name) - 1)


@dataclass
class Bench:
    """A cache, and prompts written as one letter a block."""

    cache: StageCache
    last_grant: int = 0

    def prepare(
        self, prompt: str, endpoint_blocks: int | None = None, extra_tokens: int = 1, first_block: int = 0
    ) -> tuple[GrantId, Prepared | NeedKeys | Missing | Never]:
        self.last_grant += 1
        grant = GrantId(self.last_grant)
        keys = keys_of(prompt)
        before = key_at(keys, first_block - 1) if first_block else None
        wanted = len(prompt) if endpoint_blocks is None else endpoint_blocks
        window = KeyWindow(first_block, keys[16 * first_block :], before)
        answer = self.cache.prepare(grant, window, wanted * B, len(prompt) * B + extra_tokens)
        self.cache.validate()
        return grant, answer

    def prepared(self, prompt: str, endpoint_blocks: int | None = None, extra_tokens: int = 1) -> GrantId:
        grant, answer = self.prepare(prompt, endpoint_blocks, extra_tokens)
        assert isinstance(answer, Prepared), answer
        return grant

    def run(self, grant: GrantId, prompt: str, snapshots: tuple[int, ...] = ()) -> None:
        """All chunks of a prepared prompt, with snapshots after so many blocks."""
        self.cache.commit(grant)
        start = self.cache.endpoint_tokens(grant) // B
        self.cache.materialise(grant, len(prompt) * B)
        for blocks in snapshots:
            assert self.cache.materialise_snapshot(grant, blocks * B) is not None
        self.cache.publish(grant, len(prompt) * B, keys_of(prompt)[16 * start :], start)
        for blocks in snapshots:
            self.cache.publish_snapshot(grant, blocks * B)
        self.cache.validate()

    def release(self, grant: GrantId) -> None:
        self.cache.release(self.cache.receipt(grant))
        self.cache.validate()

    def cached(self, prompt: str, snapshots: tuple[int, ...] = ()) -> None:
        """Run a prompt from beginning to end, so that its blocks stay cached."""
        grant = self.prepared(prompt, extra_tokens=1 if len(prompt) < 10 else 0, endpoint_blocks=len(prompt) - 1)
        self.run(grant, prompt, snapshots)
        self.release(grant)

    def held(self, prompt: str) -> int:
        """How many blocks of a prompt are held; changes nothing."""
        held = b"".join(segment.keys for segment in self.cache.dump())
        names = {key_at(held, i) for i in range(key_count(held))}
        return sum(key_at(keys_of(prompt), i) in names for i in range(len(prompt)))

    def room(self, pool: str = "kv") -> int:
        return self.cache.room().available[pool]


def evict(bench: Bench, blocks: int) -> None:
    """Let a grant own the free blocks and `blocks` more."""
    free = bench.cache.usage()["kv"].free
    grant = GrantId(1000)
    answer = bench.cache.prepare(grant, KeyWindow(0, b"", None), 0, (free + blocks) * B)
    assert isinstance(answer, Prepared)
    bench.cache.commit(grant)
    bench.cache.materialise(grant, (free + blocks) * B)
    bench.cache.validate()
