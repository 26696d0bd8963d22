"""Streams in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from wavepp.sim.clock import VirtualClock
from wavepp.sim.delays import StreamDelays
from wavepp.sim.delivery import TimedOrder

DELAYS = StreamDelays(hop=2.0, rounds=5.0)


class Streams:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.order = TimedOrder(self.clock, DELAYS)
        self.came: list[tuple[str, float]] = []

    def note(self, name: str) -> Callable[[], None]:
        return lambda: self.came.append((name, self.clock.now_ms))

    def send(self, stream: str, name: str, takes_ms: float = 0.0) -> None:
        self.order.send(stream, self.note(name), takes_ms)


def test_each_message_comes_after_its_streams_delay() -> None:
    streams = Streams()
    streams.send("rounds:1", "round")
    streams.send("link:1", "wave")
    streams.send("timer", "timer", 250.0)
    streams.order.run()
    assert streams.came == [("wave", 2.0), ("round", 5.0), ("timer", 250.0)]


def test_a_stream_keeps_its_order_and_jobs_run_one_after_another() -> None:
    streams = Streams()
    streams.send("jobs:0", "long", 10.0)
    streams.send("jobs:0", "short", 1.0)
    streams.clock.at(30.0, lambda: streams.send("jobs:0", "later", 4.0))
    streams.order.run()
    assert streams.came == [("long", 10.0), ("short", 11.0), ("later", 34.0)]


def test_what_is_cut_is_lost_and_one_stages_stream_is_not_anothers() -> None:
    streams = Streams()
    for stage in (1, 10):
        streams.send(f"jobs:{stage}", f"job {stage}", 5.0)
        streams.send(f"link:{stage}", f"wave {stage}")
    streams.order.cut("jobs:1", "link:")
    streams.send("jobs:1", "after", 1.0)
    streams.order.run()
    assert streams.came == [("after", 1.0), ("job 10", 5.0)]


def test_a_frozen_stream_delivers_in_order_once_it_is_frozen_no_more() -> None:
    streams = Streams()
    streams.order.frozen.add("link:0")
    for name in ("a", "b"):
        streams.send("link:0", name)
    streams.clock.at(7.0, streams.order.frozen.clear)
    streams.clock.at(7.0, lambda: streams.send("link:0", "c"))
    streams.clock.at(8.0, streams.note("other"))
    streams.order.run()
    assert streams.came == [("a", 7.0), ("b", 7.0), ("other", 8.0), ("c", 9.0)]


def test_a_run_ends_while_only_frozen_streams_have_messages_and_goes_on_after() -> None:
    streams = Streams()
    streams.order.frozen.add("link:0")
    streams.send("link:0", "held")
    streams.order.run()
    assert not streams.came
    streams.order.frozen.discard("link:0")
    streams.send("link:0", "next")
    streams.order.run()
    assert streams.came == [("held", 2.0), ("next", 4.0)]


def test_a_run_ends_as_soon_as_its_condition_holds() -> None:
    streams = Streams()
    for name in ("a", "b", "c"):
        streams.send("link:0", name)
    streams.order.run(until=lambda: len(streams.came) == 2)
    assert [name for name, _ in streams.came] == ["a", "b"]
    assert streams.order.step == 2
