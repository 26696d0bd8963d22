"""The links to the stages before and after: made when an epoch asks for them, gone at the first error.

A link outlives an epoch when nothing happened to it: frames of an older epoch are dropped by the sequencer. A link
that broke is never resumed; the router hears of it and moves the epoch, and then a fresh one is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from wavepp.codec.frames import decode_frame, encode_frame
from wavepp.core.ids import Incarnation, PipelineEpoch, StageIndex
from wavepp.core.stage.events import SendWave, WaveArrived
from wavepp.core.wire.hello import Hello
from wavepp.core.wire.wave_header import FrameHeader
from wavepp.infra.backoff import Backoff
from wavepp.infra.tasks import TaskOwner
from wavepp.stage.links.base import Link, LinkCounters, LinkListener, Transport
from wavepp.stage.links.errors import HelloRefusedError, LinkConnectError, LinkLostError

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0
CONNECT_TRIES: Final = 5


class Neighbours:
    """Both links of one stage. All callbacks run on the event loop."""

    def __init__(
        self,
        *,
        cluster: str,
        pipeline: str,
        stage: StageIndex,
        stages: int,
        transport: Transport,
        tasks: TaskOwner,
        on_wave: Callable[[WaveArrived], None],
        on_sent: Callable[[PipelineEpoch], None],
        on_ready: Callable[[PipelineEpoch], None],
        on_lost: Callable[[PipelineEpoch, str], None],
    ) -> None:
        self._cluster = cluster
        self._pipeline = pipeline
        self._stage = stage
        self._last = stage == stages - 1
        self._transport = transport
        self._tasks = tasks
        self._on_wave = on_wave
        self._on_sent = on_sent
        self._on_ready = on_ready
        self._on_lost = on_lost
        self.trouble = ""
        """Why there is no link to the next stage, once it was tried CONNECT_TRIES times running."""
        self.next_address = ""
        """Where the next stage listens for links, once that is known."""
        self._failed_tries = 0
        self._incarnation = Incarnation("")
        self._epoch = PipelineEpoch(0)
        self._listener: LinkListener | None = None
        self._before: Link | None = None
        self._after: Link | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._outgoing: deque[SendWave] = deque()
        self._outgoing_changed = asyncio.Event()
        self._wants_wave = asyncio.Event()
        self._wants_wave.set()
        # The links that ended, summed up, and then each one that lives. Replaced as a whole: other threads read it.
        self._counters: tuple[LinkCounters, ...] = (LinkCounters(),)

    async def start(self, host: str, port: int) -> str:
        """Listen for the stage before; returns the address to publish (empty on stage 0)."""
        if self._stage == 0:
            return ""
        self._listener = self._transport.listen(self._check_hello, host=host, port=port)
        address = await self._listener.start()
        self._accepting = self._tasks.spawn(self._accept(self._listener), "link-accept", endless=True)
        return address

    def identify(self, incarnation: Incarnation) -> None:
        """From now on this stage is that incarnation; links of an earlier one are dropped."""
        self._incarnation = incarnation
        self._epoch = PipelineEpoch(0)
        self._drop("a new incarnation begins")

    def describe(self) -> str:
        """For people."""
        parts = [("in", self._before)] if self._stage else []
        if not self._last:
            parts.append(("out", self._after))
        states = [f"{way}: {'up' if _lives(link) else 'down'}" for way, link in parts]
        return ", ".join(states) + (f" ({self.trouble})" if self.trouble else "")

    @property
    def up(self) -> bool:
        """Whether all links that this stage should have live."""
        return (self._stage == 0 or _lives(self._before)) and (self._last or _lives(self._after))

    # ---- totals ----

    @property
    def counters(self) -> LinkCounters:
        """The totals of all links that there have been. May be read from any thread."""
        return sum(self._counters, LinkCounters())

    def _count(self, link: Link) -> None:
        self._counters = (*self._counters, link.counters)
        link.closed.add_done_callback(lambda _: self._sum_up(link.counters))

    def _sum_up(self, ended: LinkCounters) -> None:
        past, *others = self._counters
        self._counters = (past + ended, *(each for each in others if each is not ended))

    # ---- epochs ----

    def set_epoch(self, epoch: PipelineEpoch, next_address: str, next_incarnation: str) -> None:
        """Make sure of the link to the next stage, then say so by `on_ready`."""
        self._epoch = epoch
        self._outgoing.clear()
        self._stop_connecting()
        if not next_address:
            self._on_ready(epoch)
            return
        self.next_address = next_address
        link = self._after
        if link is not None and not link.closed.done() and link.peer.from_incarnation == next_incarnation:
            self._on_ready(epoch)
            return
        if link is not None:
            link.abort("the next stage is another one now")
            self._after = None
        self._connecting = self._tasks.spawn(
            self._connect(epoch, next_address, Incarnation(next_incarnation)), "link-connect"
        )

    def _stop_connecting(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None

    async def _connect(self, epoch: PipelineEpoch, address: str, incarnation: Incarnation) -> None:
        hello = Hello(
            cluster=self._cluster,
            pipeline=self._pipeline,
            from_stage=self._stage,
            to_stage=StageIndex(self._stage + 1),
            from_incarnation=self._incarnation,
            to_incarnation=incarnation,
            epoch=epoch,
        )
        backoff = Backoff()
        for attempt in range(1, CONNECT_TRIES + 1):
            try:
                link = await self._transport.connect(address, hello, CONNECT_TIMEOUT_S)
            except (LinkConnectError, HelloRefusedError) as error:
                _log.warning("link to the next stage: %s", error)
                self._failed_tries += 1
                if self._failed_tries >= CONNECT_TRIES:
                    self.trouble = f"no link to the next stage after {self._failed_tries} tries: {error}"
                if attempt == CONNECT_TRIES:
                    self._on_lost(epoch, f"no link to the next stage after {attempt} tries: {error}")
                    return
                await asyncio.sleep(backoff.next_s())
                continue
            self._after = link
            self._failed_tries, self.trouble = 0, ""
            self._count(link)
            self._tasks.spawn(self._send(link), "link-send")
            self._tasks.spawn(self._watch_next(link), "link-watch")
            self._on_ready(epoch)
            return

    # ---- to the next stage ----

    def send(self, wave: SendWave) -> None:
        """Pass a wave on. The sequencer bounds how many wait here."""
        if wave.epoch == self._epoch:
            self._outgoing.append(wave)
            self._outgoing_changed.set()

    async def _send(self, link: Link) -> None:
        """Send what waits, as long as this is the link to the next stage."""
        while not link.closed.done() and self._after is link:
            if not self._outgoing:
                self._outgoing_changed.clear()
                await self._outgoing_changed.wait()
                continue
            wave = self._outgoing.popleft()
            header, payload = encode_frame(wave)
            try:
                await link.send(header.encode(), payload)
            except LinkLostError:
                return
            self._on_sent(wave.epoch)

    async def _watch_next(self, link: Link) -> None:
        error = await asyncio.shield(link.closed)
        self._outgoing_changed.set()
        if self._after is link:
            self._after = None
            self._on_lost(self._epoch, f"link to the next stage: {error}")

    # ---- from the stage before ----

    def wants_wave(self, wanted: bool) -> None:
        """Whether the next wave should be taken from the link; until then the sender's credit is not returned."""
        if wanted:
            self._wants_wave.set()
        else:
            self._wants_wave.clear()

    def _check_hello(self, peer: Hello) -> Hello:
        own = Hello(
            cluster=self._cluster,
            pipeline=self._pipeline,
            from_stage=self._stage,
            to_stage=StageIndex(self._stage - 1),
            from_incarnation=self._incarnation,
            to_incarnation=peer.from_incarnation,
            epoch=peer.epoch,
        )
        wanted = own.mirrored()
        if peer != wanted:
            raise HelloRefusedError(
                f"stage {peer.from_stage} of {peer.cluster}/{peer.pipeline} wants stage {peer.to_stage} "
                f"({peer.to_incarnation}), this is stage {self._stage} of {self._cluster}/{self._pipeline} "
                f"({self._incarnation})"
            )
        if peer.epoch < self._epoch:
            raise HelloRefusedError(f"hello of epoch {peer.epoch}, this stage is at {self._epoch}")
        return own

    async def _accept(self, listener: LinkListener) -> None:
        while True:
            try:
                link = await listener.accept()
            except (HelloRefusedError, LinkConnectError) as error:
                _log.warning("a link was not accepted: %s", error)
                continue
            previous, self._before = self._before, link
            self._count(link)
            if previous is not None:
                previous.abort("replaced by a newer link")
            self._tasks.spawn(self._receive(link), "link-receive")

    async def _receive(self, link: Link) -> None:
        try:
            while True:
                await self._wants_wave.wait()
                frame = await link.recv()
                payload = memoryview(frame.payload).cast("B") if frame.payload else memoryview(b"")
                header = FrameHeader.decode(frame.header, payload.nbytes)
                self._on_wave(decode_frame(header, payload, time.time_ns()))
        except LinkLostError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - the peer broke the protocol, or we did: either way the link is over
            _log.exception("link from the stage before")
            reason = f"{type(error).__name__}: {error}"
        link.abort(reason)
        if self._before is link:
            self._before = None
            self._on_lost(max(self._epoch, link.peer.epoch), f"link from the stage before: {reason}")

    def _drop(self, reason: str) -> None:
        self._stop_connecting()
        for link in (self._before, self._after):
            if link is not None:
                link.abort(reason)
        self._before = self._after = None
        self._outgoing.clear()

    async def close(self) -> None:
        """Say goodbye on both links and stop listening."""
        self._stop_connecting()
        if self._accepting is not None:
            # A listener that is closed has nothing but its error to give, again and again.
            self._accepting.cancel()
        links = [link for link in (self._before, self._after) if link is not None]
        self._before = self._after = None
        with contextlib.suppress(LinkLostError):
            await asyncio.gather(*(link.close("the stage stops") for link in links))
        await self._transport.close()


def _lives(link: Link | None) -> bool:
    return link is not None and not link.closed.done()
