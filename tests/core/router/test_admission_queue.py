"""Who waits, in which order, and what wakes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.cache.types import Room
from wavepp.core.directory.events import Wait, WaitFor
from wavepp.core.ids import PrefixKey, RequestId
from wavepp.core.limits import ROUND_ATTEMPTS_MAX, ROUND_KEYS_BYTES_MAX
from wavepp.core.router.admission_queue import AdmissionQueue, QueueFullError
from wavepp.core.router.requests import NewRequest, RequestRecord, Times


def record(order: int, *, priority: int = 0, tokens: int = 4, name: str = "", keys: int = 0) -> RequestRecord:
    request = RequestId(name or f"r{order}")
    new = NewRequest(request, bytes(4 * tokens), PrefixKey(b""), b"", 1, frozenset(), priority, None)
    return RequestRecord(new, order, Times(0.0), keys=bytearray(keys))


def queue_of(*records: RequestRecord, requests_max: int = 100, tokens_max: int = 1000) -> AdmissionQueue:
    queue = AdmissionQueue(requests_max=requests_max, tokens_max=tokens_max, retry_after_ms=7)
    for each in records:
        queue.push(each)
    return queue


def room(number: int, kv: int) -> Room:
    return Room(number, {"kv": kv, "pins": 0})


NO_ROOM = Wait(1, WaitFor.KV, 8, 5)  # type: ignore[arg-type]


def blocked(*records: RequestRecord, wait: Wait = NO_ROOM) -> AdmissionQueue:
    """A queue whose head was refused."""
    queue = queue_of(*records)
    (head,) = queue.take(1)
    queue.refused([(head, wait)])
    return queue


@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans()), max_size=30), st.integers(0, 8))
def test_order_is_by_priority_then_arrival(drawn: list[tuple[int, bool]], limit: int) -> None:
    records = [record(i, priority=priority) for i, (priority, _) in enumerate(drawn)]
    queue = queue_of(*records)
    for each, (_, removed) in zip(records, drawn, strict=True):
        if removed:
            queue.remove(each)
            queue.remove(each)
    left = sorted(
        (r for r, (_, removed) in zip(records, drawn, strict=True) if not removed),
        key=lambda r: (-r.new.priority, r.order),
    )
    assert queue.take(limit) == left[:limit]
    assert len(queue) == len(left[limit:])
    assert queue.tokens == 4 * len(left[limit:])


def test_the_queue_is_bounded_in_requests() -> None:
    queue = queue_of(record(1), record(2), requests_max=2)
    with pytest.raises(QueueFullError) as full:
        queue.check_room(1)
    assert full.value.retry_after_ms == 7


def test_the_queue_is_bounded_in_tokens_but_takes_a_lone_request_of_any_length() -> None:
    queue = queue_of(tokens_max=10)
    queue.check_room(11)
    queue.push(record(1, tokens=6))
    queue.check_room(4)
    with pytest.raises(QueueFullError):
        queue.check_room(5)


def test_a_round_has_at_most_so_many_attempts() -> None:
    queue = queue_of(*(record(i) for i in range(ROUND_ATTEMPTS_MAX + 5)))
    assert len(queue.take(1000)) == ROUND_ATTEMPTS_MAX


def test_a_round_has_at_most_so_many_keys_unless_it_has_one_attempt() -> None:
    half = ROUND_KEYS_BYTES_MAX // 2
    queue = queue_of(record(1, keys=half), record(2, keys=half), record(3, keys=16), record(4, keys=2 * half + 16))
    assert [r.order for r in queue.take(64)] == [1, 2]
    assert [r.order for r in queue.take(64)] == [3]
    assert [r.order for r in queue.take(64)] == [4]


def test_after_a_refusal_few_are_asked_for_and_then_more_each_time() -> None:
    queue = queue_of(*(record(i) for i in range(150)))
    taken = queue.take(64)
    queue.refused([(taken[0], NO_ROOM), *((r, Wait(None, WaitFor.ORDER)) for r in taken[1:])])
    queue.unblock()
    assert [len(queue.take(64)) for _ in range(4)] == [8, 16, 32, 64]


def test_a_refused_head_waits_and_everybody_behind_it() -> None:
    queue = blocked(record(1), record(2))
    assert queue.take(64) == []
    assert queue.waiting_for == NO_ROOM


def test_one_that_was_refused_for_the_order_only_does_not_wait() -> None:
    queue = blocked(record(1), wait=Wait(None, WaitFor.ORDER))
    assert [r.order for r in queue.take(64)] == [1]


@pytest.mark.parametrize(
    ("stage", "number", "kv", "asks"),
    [(1, 6, 8, True), (1, 6, 7, False), (1, 5, 8, False), (0, 6, 8, False)],
)
def test_the_head_is_asked_for_again_when_newer_room_of_its_stage_is_enough(
    stage: int, number: int, kv: int, asks: bool
) -> None:
    queue = blocked(record(1))
    queue.room(stage, room(number, kv))
    assert bool(queue.take(64)) == asks


def test_room_that_came_before_the_refusal_counts_when_it_is_newer_than_the_refusal() -> None:
    queue = queue_of(record(1))
    queue.room(1, room(6, 8))
    queue.refused([(queue.take(1)[0], NO_ROOM)])
    assert queue.take(1)


def test_old_news_of_room_does_not_replace_newer() -> None:
    queue = blocked(record(1))
    queue.room(1, room(7, 8))
    queue.room(1, room(6, 0))
    assert queue.take(1)


def test_a_request_of_higher_priority_does_not_wait_with_the_head() -> None:
    queue = blocked(record(1), record(2))
    queue.push(record(3, priority=1))
    assert [r.order for r in queue.take(1)] == [3]
    assert [r.order for r in queue.take(1)] == [1], "and asks anew, since what was known may be old by now"


def test_when_the_head_is_cancelled_those_behind_do_not_wait_for_its_room() -> None:
    head, other = record(1), record(2)
    queue = blocked(head, other)
    queue.remove(head)
    assert queue.take(64) == [other]


def test_a_request_that_comes_back_under_the_same_id_does_not_inherit_the_wait() -> None:
    head = record(1, name="same")
    queue = blocked(head)
    queue.remove(head)
    again = record(2, name="same")
    queue.push(again)
    assert queue.take(64) == [again]


def test_one_that_waits_for_the_directory_waits_until_somebody_says_so() -> None:
    queue = blocked(record(1), wait=Wait(1, WaitFor.DIRECTORY))  # type: ignore[arg-type]
    queue.room(1, room(99, 99))
    assert queue.take(1) == []
    queue.unblock()
    assert queue.take(1)


def test_rooms_of_stages_that_started_anew_are_forgotten() -> None:
    queue = queue_of(record(1))
    queue.room(1, room(50, 8))
    queue.forget_rooms()
    (head,) = queue.take(1)
    queue.refused([(head, Wait(1, WaitFor.KV, 8, 2))])  # type: ignore[arg-type]
    assert queue.take(1) == [], "the room of before is not news"
    queue.room(1, room(3, 8))
    assert queue.take(1)


def test_the_first_that_lacked_room_is_what_the_queue_waits_for() -> None:
    first, second = record(1), record(2)
    queue = queue_of(first, second)
    queue.take(64)
    queue.refused([(first, Wait(0, WaitFor.KV, 3, 1)), (second, Wait(1, WaitFor.KV, 9, 1))])  # type: ignore[arg-type]
    assert queue.waiting_for == Wait(0, WaitFor.KV, 3, 1)  # type: ignore[arg-type]
    assert (first.waits, first.waited_for) == (1, (0, "kv"))
    assert second.waits == 1
