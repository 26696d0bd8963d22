"""Transactions of the ledger's shape against the same etcd, timed in a process of their own.

What the directory writes for a round: one put and one delete, guarded by both leaders' keys, on a lease. A process of
its own, so that nothing else on an event loop is in the times.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Final

from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.etcd.types import DeleteOp, PutOp, created_at

PERIOD_S: Final = 0.02
RECORD_BYTES: Final = 200
LEASE_TTL_S: Final = 60
STOP_TIMEOUT_S: Final = 15.0


class EtcdProbe:
    """Use as `with EtcdProbe(endpoint) as probe: ...`; then `probe.times_ms` has the times."""

    def __init__(self, endpoint: str) -> None:
        self.times_ms: list[float] = []
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(endpoint, theirs), daemon=True)

    def __enter__(self) -> EtcdProbe:
        self._process.start()
        if not self._ours.poll(STOP_TIMEOUT_S):
            raise TimeoutError("the etcd probe did not start")
        self._ours.recv()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # A probe that died has said why; then there are no times.
        with contextlib.suppress(BrokenPipeError, EOFError):
            self._ours.send("stop")
            if self._ours.poll(STOP_TIMEOUT_S):
                self.times_ms = self._ours.recv()
        self._process.join(STOP_TIMEOUT_S)
        if kind is None and not self.times_ms:
            raise RuntimeError("the etcd probe measured nothing")


def _main(endpoint: str, peer: Connection) -> None:
    peer.send(asyncio.run(_probe(endpoint, peer)))


async def _probe(endpoint: str, peer: Connection) -> list[float]:
    keys = PipelineKeys("default", "p0")
    times_ms: list[float] = []
    async with EtcdClient([endpoint]) as client:
        leaders = [await client.get(keys.directory), await client.get(keys.router)]
        fences = [created_at(leader.key, leader.create_revision) for leader in leaders if leader is not None]
        lease, _ = await client.lease_grant(LEASE_TTL_S)
        renewed = time.monotonic()
        peer.send("ready")
        number = 0
        while not peer.poll():
            number += 1
            put = PutOp(f"/perf/{number}", bytes(RECORD_BYTES), lease)
            began = time.perf_counter()
            result = await client.txn(fences, [put, DeleteOp(f"/perf/{number - 1}")])
            times_ms.append(1e3 * (time.perf_counter() - began))
            if not result.succeeded:
                raise RuntimeError("a leader changed during the measurement")
            if time.monotonic() - renewed > LEASE_TTL_S / 3:
                await client.lease_renew(lease)
                renewed = time.monotonic()
            await asyncio.sleep(PERIOD_S)
        await client.lease_revoke(lease)
    return times_ms
