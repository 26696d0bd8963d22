"""Who delivers which message next: every stream keeps its order, and a delivery chooses among streams.

`RandomOrder` has no time and tries any interleaving; `TimedOrder` delivers each message when it would arrive.
Streams go by name: a kind, and for those of one stage its index ("link:3").
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final

from wavepp.core.errors import InvariantError
from wavepp.sim.clock import VirtualClock
from wavepp.sim.delays import StreamDelays

Deliver = Callable[[], None]

_STEPS_MAX: Final = 200_000


class Delivery(ABC):
    """Streams of messages. `frozen`: those that do not deliver for now. `step`: messages delivered."""

    def __init__(self) -> None:
        self.step = 0
        self.frozen: set[str] = set()

    @property
    @abstractmethod
    def now_ms(self) -> float:
        """What the clocks of all processes say."""

    @abstractmethod
    def send(self, stream: str, deliver: Deliver, takes_ms: float = 0.0) -> None:
        """Append a message. `takes_ms`: what it takes besides the stream's delay, one after another in a stream."""

    @abstractmethod
    def cut(self, *streams: str) -> None:
        """What is on these streams is lost; "link:3" is one stream, "link:" all of its kind."""

    @abstractmethod
    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Deliver until nothing is under way, or the condition holds, which is looked at before every message."""


class RandomOrder(Delivery):
    """Any stream may deliver next; a seed decides. Time is the number of messages delivered."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._draw = draw
        self._streams: dict[str, deque[Deliver]] = {}

    @property
    def now_ms(self) -> float:
        return float(self.step)

    def send(self, stream: str, deliver: Deliver, takes_ms: float = 0.0) -> None:
        self._streams.setdefault(stream, deque()).append(deliver)

    def cut(self, *streams: str) -> None:
        for name, queue in self._streams.items():
            if _among(name, streams):
                queue.clear()

    def run(self, until: Callable[[], bool] | None = None) -> None:
        for _ in range(_STEPS_MAX):
            if until is not None and until():
                return
            ready = self._ready()
            if not ready:
                return
            self.step += 1
            self._streams[self._draw.choice(ready)].popleft()()
        raise InvariantError(f"the mesh is not quiet after {_STEPS_MAX} messages")

    def _ready(self) -> list[str]:
        return [name for name, queue in self._streams.items() if queue and name not in self.frozen]


class _Message:
    __slots__ = ("deliver", "due_ms")

    def __init__(self, deliver: Deliver, due_ms: float) -> None:
        self.deliver = deliver
        self.due_ms = due_ms


class _Stream:
    """`free_ms`: before that nothing more arrives on it."""

    __slots__ = ("delay_ms", "free_ms", "messages", "name")

    def __init__(self, name: str, delay_ms: float) -> None:
        self.name = name
        self.delay_ms = delay_ms
        self.free_ms = 0.0
        self.messages: deque[_Message] = deque()


class TimedOrder(Delivery):
    """Every message arrives its stream's delay after it was sent, and not before the one ahead of it.

    The clock is shared with the clients. What is held back on a frozen stream arrives once that is frozen no more.
    """

    def __init__(self, clock: VirtualClock, delays: StreamDelays) -> None:
        super().__init__()
        self._clock = clock
        self._delays = delays
        self._streams: dict[str, _Stream] = {}
        self._held: set[str] = set()
        """Frozen streams with messages that are due."""

    @property
    def now_ms(self) -> float:
        return self._clock.now_ms

    def send(self, stream: str, deliver: Deliver, takes_ms: float = 0.0) -> None:
        way = self._streams.get(stream)
        if way is None:
            way = self._streams[stream] = _Stream(stream, self._delays.of(stream))
        due = max(self._clock.now_ms + way.delay_ms, way.free_ms) + takes_ms
        way.free_ms = due
        message = _Message(deliver, due)
        way.messages.append(message)
        self._arrives_at(due, way, message)

    def cut(self, *streams: str) -> None:
        for name, way in self._streams.items():
            if _among(name, streams):
                way.messages.clear()
                way.free_ms = 0.0
                self._held.discard(name)

    def run(self, until: Callable[[], bool] | None = None) -> None:
        def stop() -> bool:
            if self._held:
                self._let_go()
            return until is not None and until()

        while True:
            self._clock.run(stop)
            if stop() or self._held <= self.frozen:
                return

    def _arrives_at(self, time_ms: float, way: _Stream, message: _Message) -> None:
        self._clock.at(time_ms, lambda: self._arrives(way, message))

    def _arrives(self, way: _Stream, message: _Message) -> None:
        if not way.messages or way.messages[0] is not message:
            # Lost in a cut, delivered already when its stream was let go, or behind one that is held.
            return
        if way.name in self.frozen:
            self._held.add(way.name)
            return
        way.messages.popleft()
        self.step += 1
        message.deliver()

    def _let_go(self) -> None:
        for name in sorted(self._held - self.frozen):
            self._held.discard(name)
            way = self._streams[name]
            for message in way.messages:
                # By way of the clock, so that whatever runs until a condition holds can stop between two.
                if message.due_ms <= self._clock.now_ms:
                    self._arrives_at(self._clock.now_ms, way, message)


def _among(name: str, streams: tuple[str, ...]) -> bool:
    return any(name.startswith(stream) if stream.endswith(":") else name == stream for stream in streams)
