"""What the router decides, event by event."""

from __future__ import annotations

import pytest

from router_support import NAMESPACE, NO_REUSE, Router, only
from wavepp.core.cache.types import Room
from wavepp.core.directory.events import Granted, NeverFits, Verdict, Void, VoidReason, Wait, WaitFor
from wavepp.core.ids import PipelineEpoch, RequestId, StageIndex, WaveId, epoch_of
from wavepp.core.keys import prefix_keys
from wavepp.core.router import events as router_ev
from wavepp.core.router.admission_queue import QueueFullError
from wavepp.core.router.asked_batches import BATCHES_MAX
from wavepp.core.router.dispatcher import BREAKS_PER_ATTEMPT, DIRECTORY_RETRY_MS, DuplicateRequestError
from wavepp.core.router.requests import FailureKind
from wavepp.core.tokens import decode_tokens, encode_tokens
from wavepp.core.waves.types import ChosenToken, FailedGrant

S0 = StageIndex(0)

# ---- from the door to the last token ----


def test_a_request_is_asked_for_runs_and_ends_and_the_directory_hears_of_the_end_when_all_stages_have_it() -> None:
    router = Router()
    (admit,) = only(router_ev.SendAdmit, router.submit("a"))
    (attempt,) = admit.attempts
    assert (attempt.prompt_tokens, attempt.total_tokens, attempt.context) == (8, 8, "a")
    assert epoch_of(attempt.grant) == admit.epoch == 1
    (wave,) = only(router_ev.IssueWave, router.decide(Granted(4, NO_REUSE)))
    (issued,) = wave.chunks
    assert (issued.chunk.start, issued.chunk.length, issued.request) == (4, 4, "a")
    assert decode_tokens(issued.token_bytes) == [4, 5, 6, 7]
    out = router.wave_done(7)
    assert router_ev.EmitToken(RequestId("a"), 0, ChosenToken(7, 0.0)) in out
    assert router_ev.SendComputed((attempt.grant,)) in out
    (finish,) = only(router_ev.Finish, out)
    assert (finish.outcome.finish_reason, finish.outcome.cached_tokens, finish.outcome.computed_tokens) == (
        "length",
        4,
        4,
    )
    assert not only(router_ev.SendEnded, out)
    assert router.wave.ended == (attempt.grant,)
    assert router.dispatcher.live_grants() == {attempt.grant}
    assert not router.dispatcher.idle
    assert router.wave_done() == [router_ev.SendEnded((attempt.grant,))]
    assert router.dispatcher.idle
    assert router.dispatcher.live_grants() == set()


def test_decode_steps_follow_until_the_budget_is_used_up() -> None:
    router = Router()
    grant = router.run("a", 6, 3)
    router.wave_done(1)
    steps = []
    for token in (2, 3):
        (step,) = router.wave.chunks
        steps.append((step.chunk.start, step.chunk.length, step.chunk.decode, decode_tokens(step.token_bytes)))
        out = router.wave_done(token)
    assert steps == [(6, 1, True, [1]), (7, 1, True, [2])]
    (finish,) = only(router_ev.Finish, out)
    assert [t.token for t in finish.outcome.tokens] == [1, 2, 3]
    assert (finish.outcome.computed_tokens, finish.outcome.waves) == (6, 3)
    assert only(router_ev.SendComputed, router.said) == [router_ev.SendComputed((grant,))], "once, after the prefill"


def test_the_key_of_a_block_that_a_decode_step_fills_goes_with_the_step() -> None:
    router = Router()
    router.run("a", 6, 4)
    router.wave_done(50)
    assert router.wave.chunks[0].keys == b""
    router.wave_done(51)
    whole = prefix_keys(NAMESPACE, encode_tokens([*range(6), 50, 51]))
    assert router.wave.chunks[0].keys == whole[-16:]


def test_an_end_token_ends_a_request_before_its_budget() -> None:
    router = Router()
    router.run("a", 8, 5)
    (finish,) = only(router_ev.Finish, router.wave_done(99))
    assert finish.outcome.finish_reason == "stop"


def test_an_id_in_flight_is_refused_and_so_is_more_than_the_queue_holds() -> None:
    router = Router(ready=False, queue_requests_max=1)
    router.submit("a")
    with pytest.raises(DuplicateRequestError):
        router.submit("a")
    with pytest.raises(QueueFullError):
        router.submit("b")


# ---- batches ----


def test_nobody_is_asked_for_until_pipeline_and_directory_are_ready() -> None:
    router = Router(ready=False)
    assert router.submit("a") == []
    assert router.tell(router_ev.PipelineReady(PipelineEpoch(1))) == []
    assert only(router_ev.SendAdmit, router.tell(router_ev.DirectoryChanged(ready=True)))


def test_the_next_batch_goes_out_when_the_one_before_is_answered_even_if_it_is_not_written() -> None:
    router = Router()
    router.submit("a")
    first = router.asked
    assert router.submit("b") == []
    assert router.decide(batch=first, answered=False) == []
    (second,) = only(router_ev.SendAdmit, router.decide(batch=first))
    assert [a.context for a in second.attempts] == ["b"]
    router.decide(batch=second)
    assert BATCHES_MAX == 2
    assert router.submit("c") == [], "two batches wait for the ledger"
    assert only(router_ev.SendAdmit, router.decide(Granted(0, NO_REUSE), batch=first))


def test_no_more_grants_than_the_limit_are_asked_for() -> None:
    router = Router(ready=False, running_max=2)
    for name in "abc":
        router.submit(name)
    router.tell(router_ev.DirectoryChanged(ready=True))
    router.tell(router_ev.PipelineReady(PipelineEpoch(1)))
    assert [a.context for a in router.asked.attempts] == ["a", "b"]
    assert not only(router_ev.SendAdmit, router.decide(Granted(0, NO_REUSE), Granted(0, NO_REUSE)))
    assert (router.dispatcher.running, router.dispatcher.queued) == (2, 1)
    router.stop("a")
    assert [a.context for a in router.asked.attempts] == ["c"]


def test_a_refused_request_is_asked_for_under_a_new_id_when_there_is_room() -> None:
    router = Router()
    router.submit("a")
    first = router.asked
    assert router.decide(Wait(S0, WaitFor.KV, 5, 3)) == []
    assert router.tell(router_ev.RoomChanged(0, Room(4, {"kv": 4}))) == []
    (again,) = only(router_ev.SendAdmit, router.tell(router_ev.RoomChanged(0, Room(5, {"kv": 5}))))
    assert again.attempts[0].grant != first.attempts[0].grant
    router.decide(Granted(0, NO_REUSE))
    (finish,) = only(router_ev.Finish, router.wave_done(1))
    assert (finish.outcome.waits, finish.outcome.waited_for, finish.outcome.attempts) == (1, (0, "kv"), 1)


def test_a_request_that_never_fits_fails_with_the_limit_and_those_behind_it_go_on() -> None:
    router = Router(ready=False)
    router.submit("a")
    router.submit("b")
    router.tell(router_ev.PipelineReady(PipelineEpoch(1)))
    router.tell(router_ev.DirectoryChanged(ready=True))
    out = router.decide(NeverFits(S0, "kv", 60, 50), Granted(0, NO_REUSE))
    (fail,) = only(router_ev.Fail, out)
    assert fail.failure.kind is FailureKind.NEVER_FITS
    assert "60" in fail.failure.message
    assert "50" in fail.failure.message
    assert only(router_ev.IssueWave, out)


@pytest.mark.parametrize("verdict", [Wait(None, WaitFor.DIRECTORY), Void(VoidReason.EPOCH), Void(VoidReason.ENDED)])
def test_when_the_directory_cannot_decide_the_head_asks_again_after_a_while_and_not_at_once(verdict: Verdict) -> None:
    router = Router()
    router.submit("a")
    assert router.decide(verdict) == [router_ev.RetryAfter(DIRECTORY_RETRY_MS)]
    assert router.submit("b") == [], "one timer is enough"
    assert only(router_ev.SendAdmit, router.tell(router_ev.RetryDue()))


def test_a_request_that_waits_for_the_directory_is_woken_even_if_it_was_not_the_head_when_it_was_refused() -> None:
    router = Router(running_max=1)
    router.submit("low")
    router.submit("high", priority=1)
    router.tell(router_ev.DirectoryChanged(ready=False))
    assert router.decide(Wait(S0, WaitFor.DIRECTORY)) == [], "the head is another one"
    assert router.stop("high")[1:] == [router_ev.RetryAfter(DIRECTORY_RETRY_MS)]


def test_what_was_asked_on_a_stream_that_broke_is_asked_anew_and_late_verdicts_do_nothing() -> None:
    router = Router()
    router.submit("a")
    first = router.asked
    router.tell(router_ev.DirectoryChanged(ready=False, new_stream=True))
    assert (router.dispatcher.queued, router.dispatcher.admitting) == (1, 0)
    assert only(router_ev.SendAdmit, router.tell(router_ev.DirectoryChanged(ready=True)))
    assert router.asked.attempts[0].grant != first.attempts[0].grant
    assert router.decide(Granted(0, NO_REUSE), batch=first) == []
    assert router.dispatcher.running == 0


def test_grants_outlive_the_stream_to_the_directory() -> None:
    router = Router()
    router.run("a")
    router.tell(router_ev.DirectoryChanged(ready=False, new_stream=True))
    assert only(router_ev.Finish, router.wave_done(1))


# ---- giving up ----


def test_a_queued_request_is_just_forgotten() -> None:
    router = Router(ready=False)
    router.submit("a")
    assert [type(i) for i in router.stop("a")] == [router_ev.Fail]
    assert router.dispatcher.idle
    assert router.stop("a") == [], "again"


def test_a_request_that_is_cancelled_while_it_is_asked_for_ignores_what_is_decided() -> None:
    router = Router()
    router.submit("a")
    grant = router.asked.attempts[0].grant
    assert router_ev.SendCancel((grant,)) in router.stop("a")
    assert router.dispatcher.admitting == 1, "the directory has not decided yet"
    assert router.decide(Granted(0, NO_REUSE)) == []
    assert (router.dispatcher.admitting, router.dispatcher.running) == (0, 0)


def test_a_request_that_comes_back_while_its_cancelled_attempt_is_decided_is_not_confused_with_it() -> None:
    router = Router()
    router.submit("a")
    first = router.asked
    router.stop("a")
    router.submit("a")
    router.decide(Granted(0, NO_REUSE), batch=first)
    assert router.dispatcher.running == 0
    assert router.asked.attempts[0].grant != first.attempts[0].grant
    assert only(router_ev.IssueWave, router.decide(Granted(0, NO_REUSE)))


def test_a_running_request_that_is_cancelled_ends_with_the_next_wave() -> None:
    router = Router()
    grant = router.run("a", 64)
    first, second = only(router_ev.IssueWave, router.said)
    (fail,) = only(router_ev.Fail, router.stop("a"))
    assert fail.failure.kind is FailureKind.CANCELLED
    assert router.wave.ended == (grant,)
    assert router.wave.chunks == (), "no more chunks of it"
    assert router.wave_done(wave=first) == []
    assert router.wave_done(5, wave=second) == []
    assert router.wave_done() == [router_ev.SendEnded((grant,))]
    assert router.dispatcher.idle


def test_a_request_that_is_cancelled_in_decode_gets_no_more_tokens() -> None:
    router = Router()
    grant = router.run("a", 8, 4)
    router.wave_done(1)
    step = router.wave
    router.stop("a")
    assert router.wave_done(2, wave=step) == []
    assert router.wave.ended == (grant,)
    assert len(only(router_ev.EmitToken, router.said)) == 1


def test_a_request_that_finished_in_the_same_instant_is_not_failed() -> None:
    router = Router()
    router.run("a")
    router.wave_done(1)
    assert router.stop("a") == []
    assert (router.dispatcher.requests_done, router.dispatcher.requests_failed) == (1, 0)


def test_a_grant_that_failed_on_a_stage_fails_its_request_and_ends() -> None:
    router = Router()
    grant = router.run("a")
    out = router.wave_done(failed=(FailedGrant(grant, StageIndex(1), "not finite"),))
    (fail,) = only(router_ev.Fail, out)
    assert (fail.failure.kind, fail.failure.message) == (FailureKind.INTERNAL, "stage 1: not finite")
    assert router.wave.ended == (grant,)
    failed_again = (FailedGrant(grant, StageIndex(1), "not finite"),)
    assert router.wave_done(failed=failed_again) == [router_ev.SendEnded((grant,))]


# ---- when the pipeline broke ----


def test_after_a_break_a_request_goes_on_with_what_it_has_generated() -> None:
    router = Router()
    router.run("a", 6, 4)
    router.wave_done(50)
    router.wave_done(51)
    router.new_epoch(2)
    (attempt,) = router.asked.attempts
    assert (attempt.prompt_tokens, attempt.total_tokens) == (8, 9)
    assert attempt.keys == prefix_keys(NAMESPACE, encode_tokens([*range(6), 50, 51]))
    assert epoch_of(attempt.grant) == 2
    router.decide(Granted(4, NO_REUSE))
    (issued,) = router.wave.chunks
    assert decode_tokens(issued.token_bytes) == [4, 5, 50, 51]
    out = router.wave_done(52)
    assert router_ev.EmitToken(RequestId("a"), 2, ChosenToken(52, 0.0)) in out
    assert only(router_ev.SendComputed, out), "the next turn of the conversation hits"
    (finish,) = only(router_ev.Finish, router.wave_done(53))
    outcome = finish.outcome
    assert [t.token for t in outcome.tokens] == [50, 51, 52, 53]
    assert (outcome.attempts, outcome.computed_tokens, outcome.cached_tokens) == (2, 6 + 2, 4)
    assert outcome.times.granted <= outcome.times.first_token, "its first token came from its first grant"


def test_what_is_sent_of_an_older_epoch_does_nothing() -> None:
    router = Router()
    router.run("a")
    old = router.wave
    router.new_epoch(2)
    assert router.wave_done(1, wave=old) == []
    assert router.tell(router_ev.StepDone(S0, PipelineEpoch(1), old.wave)) == []
    assert router.tell(router_ev.WaveDone(PipelineEpoch(2), WaveId(77), (), (), ())) == []
    assert not only(router_ev.EmitToken, router.said)


def test_a_wave_of_another_epoch_is_not_done_though_its_number_is_that_of_one_in_flight() -> None:
    router = Router()
    router.run("a")
    wave = router.wave
    grant = wave.chunks[0].chunk.grant
    for epoch in (0, 2):
        stray = router_ev.WaveDone(PipelineEpoch(epoch), wave.wave, ((grant, ChosenToken(7, 0.0)),), (), ())
        assert router.tell(stray) == []
    assert router.dispatcher.waves_in_flight == 1
    assert only(router_ev.Finish, router.wave_done(7))


def test_no_grant_id_comes_twice_in_an_epoch() -> None:
    router = Router()
    grants = set()
    for i in range(1, 1200):
        router.submit(f"r{i}", 1)
        grants.add(router.asked.attempts[0].grant)
        router.stop(f"r{i}")
        router.decide(Void(VoidReason.CANCELLED))
    assert len(grants) == 1199


def test_after_a_break_requests_are_back_in_their_old_places() -> None:
    router = Router()
    router.run("a")
    router.submit("b")
    router.submit("c")
    router.new_epoch(2)
    assert [a.context for a in router.asked.attempts] == ["a", "b", "c"]


def test_a_request_whose_pipeline_breaks_too_often_fails() -> None:
    router = Router(attempts_max=1)
    router.run("a")
    for epoch in range(2, 2 + BREAKS_PER_ATTEMPT - 1):
        assert not only(router_ev.Fail, router.new_epoch(epoch))
        assert not only(router_ev.Fail, router.new_epoch(epoch + 100)), "it was not granted, which is no attempt"
        router.decide(Granted(0, NO_REUSE))
    (fail,) = only(router_ev.Fail, router.new_epoch(300))
    assert fail.failure.kind is FailureKind.PIPELINE
    assert "link cut" in fail.failure.message
    assert router.dispatcher.idle


def test_while_the_pipeline_is_broken_nothing_is_asked_or_issued() -> None:
    router = Router()
    router.run("a", 64)
    router.tell(router_ev.PipelineBroken("gone"))
    assert router.submit("b") == []
    assert router.dispatcher.waves_in_flight == 0
    assert router.dispatcher.live_grants() == set()
    assert [type(i) for i in router.stop("a")] == [router_ev.Fail]


def test_while_a_stage_drains_what_runs_ends_and_nobody_is_asked_for() -> None:
    router = Router()
    router.run("a")
    router.submit("b")
    asked = router.asked
    assert not only(router_ev.Drained, router.tell(router_ev.StagesDraining(1)))
    router.decide(Granted(0, NO_REUSE))
    assert not only(router_ev.Drained, router.said), "b was asked for before, and runs"
    router.submit("c")
    first, second = only(router_ev.IssueWave, router.said)
    router.wave_done(5, wave=first)
    router.wave_done(5, wave=second)
    assert router.dispatcher.requests_done == 2
    assert router.asked is asked
    assert not only(router_ev.Drained, router.said), "their ends are under way"
    router.wave_done()
    assert not only(router_ev.Drained, router.said), "b's end is under way"
    assert only(router_ev.Drained, router.wave_done()) == [router_ev.Drained()]
    assert not only(router_ev.Drained, router.submit("d")), "it was told"
    assert only(router_ev.Drained, router.tell(router_ev.StagesDraining(2))), "another one was not"
    assert not only(router_ev.SendAdmit, router.tell(router_ev.PipelineBroken("stage 1 has stopped")))
    assert not only(router_ev.SendAdmit, router.tell(router_ev.StagesDraining(0))), "the pipeline is not ready"
    router.tell(router_ev.PipelineReady(PipelineEpoch(2)))
    assert [a.context for a in router.asked.attempts] == ["c", "d"]


def test_a_wait_for_room_does_not_outlive_the_epoch() -> None:
    router = Router()
    router.submit("a")
    router.decide(Wait(S0, WaitFor.KV, 5, 300))
    assert only(router_ev.SendAdmit, router.new_epoch(2)), "the stages may be new ones"


def test_stage_0_has_at_most_one_wave_that_waits() -> None:
    router = Router()
    router.run("a", 160)
    assert router.dispatcher.waves_in_flight == 2
    assert router.tell(router_ev.StepDone(S0, PipelineEpoch(9), WaveId(1))) == []
    (third,) = only(router_ev.IssueWave, router.tell(router_ev.StepDone(S0, PipelineEpoch(1), WaveId(1))))
    assert third.wave == 3


def test_a_grant_is_known_by_its_request_while_it_is_asked_for_and_while_it_runs() -> None:
    router = Router()
    router.submit("a")
    grant = router.asked.attempts[0].grant
    assert router.dispatcher.request_of(grant) == "a"
    router.decide(Granted(0, NO_REUSE))
    assert router.dispatcher.request_of(grant) == "a"
    router.wave_done(1)
    assert router.dispatcher.request_of(grant) is None


def test_requests_that_wait_for_the_ledger_count_against_the_limit_of_grants() -> None:
    router = Router(running_max=2)
    router.submit("a")
    router.submit("b")
    router.submit("c")
    (second,) = only(router_ev.SendAdmit, router.decide())
    assert [a.context for a in second.attempts] == ["b"]


def test_a_break_before_a_filled_block_was_decoded_sends_its_key_all_the_same() -> None:
    router = Router()
    router.run("a", 7, 4)
    first = router.wave
    router.run("b", 160)
    router.tell(router_ev.StepDone(S0, PipelineEpoch(1), first.wave))
    router.wave_done(50, wave=first)
    assert not any(c.chunk.decode for c in router.wave.chunks), "stage 0 is busy, the step waits"
    router.new_epoch(2)
    again = router.asked.attempts[0]
    assert (again.context, again.prompt_tokens) == ("a", 8)
    assert again.keys == prefix_keys(NAMESPACE, encode_tokens([*range(7), 50]))
