"""Requests that a stage did not answer for: they rest, are asked for alone, and fail in the end."""

from __future__ import annotations

import pytest

from router_support import NO_REUSE, Router, only
from wavepp.core.directory.events import Granted, Verdict, Void, VoidReason, Wait, WaitFor
from wavepp.core.ids import PipelineEpoch, StageIndex
from wavepp.core.router import events as router_ev
from wavepp.core.router.dispatcher import DIRECTORY_RETRY_MS, UNANSWERED_ALONE_MAX, UNANSWERED_REST_MAX_MS
from wavepp.core.router.requests import FailureKind

UNANSWERED = Void(VoidReason.UNANSWERED, StageIndex(1))


def together(*names: str) -> Router:
    """A router that asks for all of these in one batch."""
    router = Router(ready=False)
    for name in names:
        router.submit(name)
    router.tell(router_ev.DirectoryChanged(ready=True))
    router.tell(router_ev.PipelineReady(PipelineEpoch(1)))
    assert [a.context for a in router.asked.attempts] == list(names)
    return router


def asked(out: list[router_ev.Instruction]) -> list[object]:
    return [a.context for admit in only(router_ev.SendAdmit, out) for a in admit.attempts]


def later(router: Router, ms: float) -> list[router_ev.Instruction]:
    """So much later, when the timer goes off that may be running."""
    router.now += ms
    return router.tell(router_ev.RetryDue())


def test_those_of_a_round_that_broke_are_asked_for_one_by_one_after_a_while() -> None:
    router = together("a", "b", "c")
    out = router.decide(UNANSWERED, UNANSWERED, UNANSWERED)
    assert out == [router_ev.RetryAfter(DIRECTORY_RETRY_MS)]
    assert asked(later(router, DIRECTORY_RETRY_MS)) == ["a"]
    assert asked(router.decide(Granted(0, NO_REUSE))) == ["b"]
    assert asked(router.decide(UNANSWERED)) == ["c"], "it rests, and keeps nobody waiting"
    assert router.dispatcher.queued == 1


def test_others_go_on_while_one_rests_and_it_is_not_asked_for_with_them() -> None:
    router = together("bad")
    router.decide(UNANSWERED)
    assert asked(router.submit("new")) == ["new"]
    router.submit("newer")
    router.submit("newest")
    later(router, DIRECTORY_RETRY_MS)
    assert asked(router.decide(Granted(0, NO_REUSE))) == ["bad"]
    assert asked(router.decide(UNANSWERED)) == ["newer", "newest"]


def test_one_that_is_never_answered_rests_longer_each_time_and_fails_in_the_end() -> None:
    router = together("bad", "good")
    router.decide(UNANSWERED, Granted(0, NO_REUSE))
    rests = []
    for alone in range(1, UNANSWERED_ALONE_MAX + 1):
        rests.append(0)
        while not asked(later(router, 50.0)):
            rests[-1] += 50
        out = router.decide(UNANSWERED)
        assert bool(only(router_ev.Fail, out)) == (alone == UNANSWERED_ALONE_MAX)
    (fail,) = only(router_ev.Fail, out)
    assert fail.failure.kind is FailureKind.INTERNAL
    assert f"stage 1 did not answer, or broke the directory's stream, each of the {UNANSWERED_ALONE_MAX} times" in (
        fail.failure.message
    )
    assert [rest // DIRECTORY_RETRY_MS for rest in rests] == [0, 1, 3, 7, 15]
    assert max(rests) <= UNANSWERED_REST_MAX_MS
    assert (router.dispatcher.queued, router.dispatcher.admitting) == (0, 0)


@pytest.mark.parametrize("verdict", [Wait(None, WaitFor.DIRECTORY), Void(VoidReason.EPOCH)])
def test_that_the_directory_or_etcd_is_away_is_nobodys_fault(verdict: Verdict) -> None:
    router = together("a")
    for _ in range(50):
        assert not only(router_ev.Fail, router.decide(verdict))
        assert asked(later(router, DIRECTORY_RETRY_MS)) == ["a"]


def test_one_that_was_granted_at_last_begins_anew() -> None:
    router = together("a")
    for _ in range(UNANSWERED_ALONE_MAX - 1):
        router.decide(UNANSWERED)
        assert asked(later(router, UNANSWERED_REST_MAX_MS)) == ["a"]
    router.decide(Granted(0, NO_REUSE))
    assert not only(router_ev.Fail, router.new_epoch(2))
    assert not only(router_ev.Fail, router.decide(UNANSWERED))


def test_one_that_rests_counts_in_the_queue_and_can_be_cancelled() -> None:
    router = together("a")
    router.decide(UNANSWERED)
    assert router.dispatcher.queued == 1
    assert [type(i) for i in router.stop("a")] == [router_ev.Fail]
    assert router.dispatcher.idle
    assert later(router, UNANSWERED_REST_MAX_MS) == []
