"""What the directory decides, answer by answer."""

from __future__ import annotations

from typing import TypeVar

import pytest

from wavepp.core.cache.types import CacheChange, ChangeKind, Missing, NeedKeys, Never, Prepared
from wavepp.core.directory import events as directory_ev
from wavepp.core.directory.admission import Admission
from wavepp.core.errors import PeerProtocolError
from wavepp.core.ids import DirectoryEpoch, GrantId, PipelineEpoch, RoundId, StageIndex, grant_id
from wavepp.core.keys import Namespace, key_at, prefix_keys
from wavepp.core.limits import KEY_BYTES
from wavepp.core.stage.events import Answer, RefusalReason, Refused
from wavepp.core.tokens import encode_tokens

B = 4
EPOCH = PipelineEpoch(1)
S0, S1, S2 = (StageIndex(i) for i in range(3))
Kind = TypeVar("Kind")


def g(counter: int, epoch: int = 1) -> GrantId:
    return grant_id(PipelineEpoch(epoch), counter)


def keys_of(tokens: int) -> bytes:
    return prefix_keys(Namespace("model", "f32", B, None, None), encode_tokens(range(tokens)))


def attempt(grant: GrantId, prompt: int = 20, total: int = 24) -> directory_ev.Attempt:
    return directory_ev.Attempt(grant, prompt, total, keys_of(prompt), f"c{grant}")


def only(kind: type[Kind], out: list[directory_ev.Instruction]) -> list[Kind]:
    return [i for i in out if isinstance(i, kind)]


UNANSWERED = directory_ev.Void(directory_ev.VoidReason.UNANSWERED, S1)


class Directory:
    """An admission with its stages connected and in sync; every stage holds the first `held` blocks of the prompts."""

    def __init__(self, stages: int = 2, *, held: int = 0, recurrent: tuple[bool, ...] = (), alignment: int = B) -> None:
        self.admission = Admission(
            directory_epoch=DirectoryEpoch(5),
            recurrent=recurrent or (False,) * stages,
            block_tokens=B,
            alignment_tokens=alignment,
        )
        self.tell(directory_ev.RouterConnected(EPOCH, frozenset()))
        for stage in range(stages):
            self.connect(StageIndex(stage), held)

    def tell(self, event: directory_ev.Event) -> list[directory_ev.Instruction]:
        return self.admission.handle(event)

    def connect(self, stage: StageIndex, held: int = 0) -> None:
        assert self.tell(directory_ev.StageConnected(stage, f"inc{stage}", 0, self.admission.grants)) == [
            directory_ev.AskDump(stage)
        ]
        self.tell(directory_ev.CacheDumped(stage, f"inc{stage}", keys_of(held * B), keys_of(held * B), True, 0))

    def admit(self, *grants: GrantId, batch: int = 1) -> list[directory_ev.Instruction]:
        return self.tell(directory_ev.Admit(batch, EPOCH, tuple(attempt(grant) for grant in grants)))

    def answer(
        self,
        stage: StageIndex,
        *answers: tuple[GrantId, Answer],
        round_id: int = 1,
        room: int = 0,
        lowered: bool = False,
    ) -> list[directory_ev.Instruction]:
        numbered = tuple((grant, answer, room) for grant, answer in answers)
        return self.tell(directory_ev.StageAnswered(stage, RoundId(round_id), numbered, lowered))

    def prepared(
        self, stage: StageIndex, *grants: GrantId, endpoint: int = 0, round_id: int = 1
    ) -> list[directory_ev.Instruction]:
        return self.answer(stage, *((grant, Prepared(endpoint, ())) for grant in grants), round_id=round_id)

    def written(self, round_id: int = 1, *, ok: bool = True) -> list[directory_ev.Instruction]:
        return self.tell(directory_ev.RecordWritten(RoundId(round_id), ok))

    def granted(self, *grants: GrantId) -> None:
        """Admit these and let everybody agree."""
        self.admit(*grants)
        self.written()
        self.prepared(S0, *grants)
        out = self.prepared(S1, *grants)
        assert [
            v for d in only(directory_ev.Decide, out) for _, v in d.decisions if not isinstance(v, directory_ev.Granted)
        ] == []
        assert self.admission.grants >= set(grants)

    def assert_forgotten(self) -> None:
        """Nothing is remembered of any grant or round."""
        admission = self.admission
        assert admission.grants == set()
        assert admission.rounds_in_flight == 0
        assert not admission._keys
        assert not admission._round_of
        assert not admission._ledger._records
        assert not admission._ledger._record_of


def decisions(out: list[directory_ev.Instruction]) -> list[tuple[GrantId, directory_ev.Verdict]]:
    return [decision for decide in only(directory_ev.Decide, out) for decision in decide.decisions]


def aborts(out: list[directory_ev.Instruction]) -> dict[StageIndex, tuple[GrantId, ...]]:
    return {i.stage: i.grants for i in only(directory_ev.SendAbort, out)}


def name_of(round_id: int) -> str:
    return f"{5:016x}-{round_id:016x}"


def deleted(round_id: int = 1) -> directory_ev.SetRecord:
    return directory_ev.SetRecord(name_of(round_id), EPOCH, ())


# ---- a round ----


def test_a_round_asks_every_stage_and_writes_its_record_at_the_same_time() -> None:
    out = Directory(held=2).admit(g(1))
    first, second, record = out
    assert isinstance(first, directory_ev.SendPrepare)
    assert isinstance(second, directory_ev.SendPrepare)
    assert (first.stage, second.stage, first.epoch) == (S0, S1, EPOCH)
    (question,) = first.grants
    assert (question.endpoint_tokens, question.prompt_tokens, question.total_tokens) == (8, 20, 24)
    assert (question.first_block, question.keys) == (2, keys_of(20)[2 * KEY_BYTES :])
    assert question.key_before == key_at(keys_of(20), 1)
    assert record == directory_ev.SetRecord(name_of(1), EPOCH, ((g(1), 8, 24),), RoundId(1))


@pytest.mark.parametrize("written_first", [True, False])
def test_a_grant_is_decided_when_all_stages_prepared_it_and_the_record_is_written(written_first: bool) -> None:
    directory = Directory()
    directory.admit(g(1))
    if written_first:
        assert directory.written() == []
    assert directory.prepared(S0, g(1)) == []
    out = directory.prepared(S1, g(1))
    if not written_first:
        assert out == [directory_ev.Decide(1, (), True)], "answered, so the next round may begin"
        assert directory.admission.grants == set()
        out = directory.written()
    (decide,) = only(directory_ev.Decide, out)
    assert decide.answered
    ((grant, verdict),) = decide.decisions
    assert grant == g(1)
    assert isinstance(verdict, directory_ev.Granted)
    assert directory.admission.grants == {g(1)}
    assert (directory.admission.rounds_in_flight, directory.admission.rounds_done) == (0, 1)


def test_a_refused_attempt_is_aborted_where_it_was_prepared_and_nowhere_else() -> None:
    directory = Directory(3)
    directory.admit(g(1), g(2))
    directory.written()
    directory.prepared(S0, g(1), g(2))
    directory.prepared(S2, g(1), g(2))
    out = directory.answer(S1, (g(1), Missing("kv", 6, 2)), (g(2), Refused(RefusalReason.ORDER)), room=9)
    assert decisions(out) == [
        (g(1), directory_ev.Wait(S1, directory_ev.WaitFor.KV, 6, 9)),
        (g(2), directory_ev.Wait(S1, directory_ev.WaitFor.ORDER)),
    ]
    assert aborts(out) == {S0: (g(1), g(2)), S2: (g(1), g(2))}
    assert deleted() in out
    directory.assert_forgotten()


def test_one_refusal_does_not_stop_the_others_of_the_round() -> None:
    directory = Directory()
    directory.admit(g(1), g(2))
    directory.written()
    directory.prepared(S0, g(1), g(2))
    out = directory.answer(S1, (g(1), Prepared(0, ())), (g(2), Missing("kv", 6, 2)))
    assert {grant: type(verdict) for grant, verdict in decisions(out)} == {
        g(1): directory_ev.Granted,
        g(2): directory_ev.Wait,
    }
    directory.tell(directory_ev.GrantsEnded((g(1),)))
    directory.assert_forgotten()


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (Missing("kv", 6, 2), Never("kv", 60, 50), directory_ev.NeverFits(S1, "kv", 60, 50)),
        (Missing("kv", 6, 2), Missing("state", 1, 0), directory_ev.Wait(S0, directory_ev.WaitFor.KV, 6, 3)),
        (Refused(RefusalReason.ORDER), Missing("kv", 6, 2), directory_ev.Wait(S1, directory_ev.WaitFor.KV, 6, 3)),
        (Prepared(0, ()), Refused(RefusalReason.ORDER), directory_ev.Wait(S1, directory_ev.WaitFor.ORDER)),
        (Prepared(0, ()), Refused(RefusalReason.EPOCH), directory_ev.Void(directory_ev.VoidReason.EPOCH)),
        (Refused(RefusalReason.ORDER), Refused(RefusalReason.ENDED), directory_ev.Void(directory_ev.VoidReason.ENDED)),
    ],
)
def test_what_can_never_be_is_decided_before_what_must_wait(
    first: Answer, second: Answer, verdict: directory_ev.Verdict
) -> None:
    directory = Directory()
    directory.admit(g(1))
    directory.answer(S0, (g(1), first), room=3)
    assert decisions(directory.answer(S1, (g(1), second), room=3)) == [(g(1), verdict)]


def test_a_stage_that_does_not_know_the_key_is_asked_again_with_all_keys_and_so_are_those_behind_it() -> None:
    directory = Directory(held=2)
    directory.admit(g(1), g(2), g(3))
    directory.prepared(S0, g(1), g(2), g(3), endpoint=8)
    out = directory.answer(S1, (g(1), Prepared(8, ())), (g(2), NeedKeys()), (g(3), Refused(RefusalReason.ORDER)))
    (again,) = only(directory_ev.SendPrepare, out)
    assert (again.stage, [q.grant for q in again.grants]) == (S1, [g(2), g(3)])
    assert all((q.first_block, q.keys, q.key_before) == (0, keys_of(20), b"") for q in again.grants)
    assert decisions(out) == []
    directory.written()
    assert {grant for grant, _ in decisions(directory.prepared(S1, g(2), g(3)))} == set()
    directory.answer(S0, *((grant, Prepared(0, ())) for grant in (g(2), g(3))), lowered=True)
    assert directory.admission.grants == {g(1), g(2), g(3)}


def test_a_stage_whose_cache_is_not_known_is_sent_all_keys_at_once() -> None:
    directory = Directory(held=2)
    directory.tell(directory_ev.CacheChanged(S1, "inc1", 9, (), True))
    first, second = only(directory_ev.SendPrepare, directory.admit(g(1)))
    assert (first.grants[0].first_block, second.grants[0].first_block) == (2, 0)
    assert second.grants[0].endpoint_tokens == 8


def test_without_all_stages_nobody_is_asked() -> None:
    directory = Directory()
    directory.tell(directory_ev.StageDisconnected(S1))
    assert directory.admit(g(1)) == [
        directory_ev.Decide(1, ((g(1), directory_ev.Wait(S1, directory_ev.WaitFor.DIRECTORY)),), True)
    ]


def test_a_round_of_another_epoch_is_void() -> None:
    out = Directory().tell(directory_ev.Admit(7, PipelineEpoch(2), (attempt(g(1, epoch=2)),)))
    assert out == [directory_ev.Decide(7, ((g(1, epoch=2), directory_ev.Void(directory_ev.VoidReason.EPOCH)),), True)]


@pytest.mark.parametrize("before", ["asked for", "granted", "computed"])
def test_an_id_that_is_admitted_twice_is_a_fault(before: str) -> None:
    directory = Directory()
    if before == "asked for":
        directory.admit(g(1))
    else:
        directory.granted(g(1))
    if before == "computed":
        directory.tell(directory_ev.GrantsComputed((g(1),)))
    with pytest.raises(PeerProtocolError):
        directory.admit(g(1), batch=2)


def test_a_batch_with_an_id_that_is_known_leaves_nothing_of_itself_behind() -> None:
    directory = Directory()
    directory.granted(g(1))
    for batch in ((g(2), g(1)), (g(2), g(2))):
        with pytest.raises(PeerProtocolError):
            directory.admit(*batch, batch=2)
    assert directory.admission.rounds_in_flight == 0
    assert directory.tell(directory_ev.CancelAttempts((g(2),))) == []
    asked = only(directory_ev.SendPrepare, directory.admit(g(2), batch=3))
    assert [(prepare.stage, len(prepare.grants)) for prepare in asked] == [(S0, 1), (S1, 1)]


def test_a_round_may_begin_while_the_one_before_waits_for_the_ledger() -> None:
    directory = Directory()
    directory.admit(g(1), batch=1)
    for stage in (S0, S1):
        directory.prepared(stage, g(1))
    directory.admit(g(2), batch=2)
    for stage in (S0, S1):
        directory.prepared(stage, g(2), round_id=2)
    assert directory.admission.rounds_in_flight == 2
    assert [d.batch for r in (1, 2) for d in only(directory_ev.Decide, directory.written(r))] == [1, 2]


# ---- endpoints ----


def lowering() -> Directory:
    """Stage 1 offered one block less than stages 0 and 2, which must step down."""
    directory = Directory(3, held=3)
    directory.admit(g(1))
    directory.written()
    directory.prepared(S0, g(1), endpoint=12)
    directory.prepared(S2, g(1), endpoint=12)
    assert directory.prepared(S1, g(1), endpoint=8) == [
        directory_ev.SendLower(S0, RoundId(1), ((g(1), 8),)),
        directory_ev.SendLower(S2, RoundId(1), ((g(1), 8),)),
    ]
    return directory


def test_where_endpoints_differ_those_above_step_down_before_the_grant_is_decided() -> None:
    directory = lowering()
    assert directory.answer(S0, (g(1), Prepared(8, ())), lowered=True) == []
    ((_, verdict),) = decisions(directory.answer(S2, (g(1), Prepared(8, ())), lowered=True))
    assert isinstance(verdict, directory_ev.Granted)
    assert verdict.endpoint_tokens == verdict.reuse.endpoint_tokens == 8
    assert verdict.reuse.limiting_stage == S1
    assert verdict.reuse.longest_all_tokens == 12


def test_a_hint_that_promised_too_much_is_forgotten_for_that_stage_alone() -> None:
    directory = lowering()
    directory.answer(S0, (g(1), Prepared(8, ())), lowered=True)
    directory.answer(S2, (g(1), Prepared(8, ())), lowered=True)
    hints, keys = directory.admission.hints, keys_of(12)
    assert hints.stages_holding(key_at(keys, 1)) == 0b111
    assert hints.stages_holding(key_at(keys, 2)) == 0b101, "those that stepped down still hold it"


def test_a_stage_that_cannot_step_down_makes_all_let_go_itself_included() -> None:
    directory = lowering()
    directory.answer(S2, (g(1), Prepared(8, ())), lowered=True)
    out = directory.answer(S0, (g(1), Missing("kv", 3, 1)), room=4, lowered=True)
    assert decisions(out) == [(g(1), directory_ev.Wait(S0, directory_ev.WaitFor.KV, 3, 4))]
    assert aborts(out) == {S0: (g(1),), S1: (g(1),), S2: (g(1),)}
    directory.assert_forgotten()


def test_a_recurrent_stage_that_lacks_the_snapshot_forgets_the_snapshot_and_not_the_blocks() -> None:
    directory = Directory(held=3, recurrent=(False, True))
    directory.admit(g(1))
    directory.written()
    directory.prepared(S0, g(1), endpoint=12)
    out = directory.answer(S1, (g(1), Prepared(4, (4,))))
    assert only(directory_ev.SendLower, out) == [directory_ev.SendLower(S0, RoundId(1), ((g(1), 4),))]
    hints, keys = directory.admission.hints, keys_of(12)
    assert [hints.stages_with_snapshot(key_at(keys, i)) >> S1 & 1 for i in range(3)] == [1, 0, 0]
    assert [hints.stages_holding(key_at(keys, i)) for i in range(3)] == [3, 3, 3]


def test_stages_agree_on_a_snapshot_that_all_recurrent_ones_have() -> None:
    directory = Directory(held=4, recurrent=(True, True))
    directory.admit(g(1))
    directory.answer(S0, (g(1), Prepared(16, (16, 8, 4))))
    out = directory.answer(S1, (g(1), Prepared(12, (12, 8))))
    assert {(i.stage, i.grants) for i in only(directory_ev.SendLower, out)} == {(S0, ((g(1), 8),)), (S1, ((g(1), 8),))}


# ---- hints ----


def test_what_is_computed_is_hinted_at_once() -> None:
    directory = Directory()
    directory.granted(g(1))
    directory.tell(directory_ev.GrantsComputed((g(1), g(9))))
    (first, _) = only(directory_ev.SendPrepare, directory.admit(g(2), batch=2))
    assert first.grants[0].endpoint_tokens == 16


@pytest.mark.parametrize(("alignment", "endpoint", "block"), [(4, 16, 4), (8, 16, 3)])
def test_the_snapshot_at_the_prompts_last_aligned_place_is_hinted_too(
    alignment: int, endpoint: int, block: int
) -> None:
    directory = Directory(recurrent=(True, False), alignment=alignment)
    directory.granted(g(1))
    directory.tell(directory_ev.GrantsComputed((g(1),)))
    hints, keys = directory.admission.hints, keys_of(20)
    assert [hints.stages_with_snapshot(key_at(keys, i)) for i in range(5)] == [int(i == block) for i in range(5)]
    out = directory.tell(directory_ev.Admit(2, EPOCH, (directory_ev.Attempt(g(2), 21, 21, keys, None),)))
    assert only(directory_ev.SendPrepare, out)[0].grants[0].endpoint_tokens == (20 if alignment == 4 else endpoint)


def test_a_prompt_without_a_full_block_is_admitted_and_hints_nothing() -> None:
    directory = Directory(recurrent=(True, False))
    out = directory.tell(directory_ev.Admit(1, EPOCH, (directory_ev.Attempt(g(1), 3, 3, b"", None),)))
    assert only(directory_ev.SendPrepare, out)[0].grants[0].keys == b""
    directory.tell(directory_ev.GrantsComputed((g(1),)))
    assert directory.admission.hints.sizes() == (0, 0)


def test_changes_of_a_cache_reach_the_hints_and_a_gap_asks_for_a_dump() -> None:
    directory = Directory()
    key = key_at(keys_of(4), 0)
    published = (CacheChange(ChangeKind.PUBLISHED, key),)
    assert directory.tell(directory_ev.CacheChanged(S0, "inc0", 0, published, False)) == []
    assert directory.admission.hints.stages_holding(key) == 1
    assert directory.tell(directory_ev.CacheChanged(S0, "inc0", 5, published, False)) == [directory_ev.AskDump(S0)]
    assert not directory.admission.in_sync(S0)
    assert directory.admission.in_sync(S1)


# ---- giving up ----


def test_an_attempt_that_is_cancelled_before_a_stage_answered_is_aborted_there_now_and_when_it_answers() -> None:
    directory = Directory()
    directory.admit(g(1), g(2))
    directory.written()
    directory.prepared(S0, g(1), g(2))
    out = directory.tell(directory_ev.CancelAttempts((g(1),)))
    assert decisions(out) == [(g(1), directory_ev.Void(directory_ev.VoidReason.CANCELLED))]
    assert aborts(out) == {S0: (g(1),), S1: (g(1),)}
    assert not only(directory_ev.Decide, out)[0].answered, "the other one is still being asked for"
    out = directory.prepared(S1, g(1), g(2))
    assert aborts(out) == {S1: (g(1),)}
    assert directory.admission.grants == {g(2)}


def test_an_attempt_that_is_cancelled_while_stages_step_down_is_aborted() -> None:
    directory = lowering()
    out = directory.tell(directory_ev.CancelAttempts((g(1),)))
    assert set(aborts(out)) == {S0, S1, S2}
    directory.answer(S0, (g(1), Prepared(8, ())), lowered=True)
    directory.assert_forgotten()


def test_an_attempt_that_is_cancelled_while_it_waits_for_the_ledger_is_never_granted() -> None:
    directory = Directory()
    directory.admit(g(1))
    for stage in (S0, S1):
        directory.prepared(stage, g(1))
    assert decisions(directory.tell(directory_ev.CancelAttempts((g(1),)))) == [
        (g(1), directory_ev.Void(directory_ev.VoidReason.CANCELLED))
    ]
    assert directory.written() == [deleted()]
    directory.assert_forgotten()


def test_a_grant_that_is_cancelled_after_it_was_decided_is_aborted_everywhere() -> None:
    directory = Directory()
    directory.granted(g(1))
    out = directory.tell(directory_ev.CancelAttempts((g(1), g(7))))
    assert aborts(out) == {S0: (g(1),), S1: (g(1),)}
    assert decisions(out) == []
    assert deleted() in out
    directory.assert_forgotten()


def test_an_attempt_that_is_cancelled_twice_at_once_ends_once() -> None:
    directory = Directory()
    directory.admit(g(1))
    assert decisions(directory.tell(directory_ev.CancelAttempts((g(1), g(1))))) == [
        (g(1), directory_ev.Void(directory_ev.VoidReason.CANCELLED))
    ]
    directory.written()
    directory.assert_forgotten()


def test_a_stage_that_answers_again_does_not_undo_a_grant_of_a_round_that_goes_on() -> None:
    directory = Directory()
    directory.admit(g(1), g(2))
    directory.written()
    directory.prepared(S0, g(1), g(2))
    directory.prepared(S1, g(1))
    assert directory.admission.grants == {g(1)}
    assert directory.prepared(S1, g(1)) == []


def test_an_answer_for_a_round_that_is_over_is_aborted_unless_it_was_granted() -> None:
    directory = Directory()
    directory.granted(g(1))
    assert directory.prepared(S0, g(1)) == []
    assert aborts(directory.prepared(S0, g(4), round_id=9)) == {S0: (g(4),)}
    assert directory.answer(S0, (g(4), Refused(RefusalReason.ENDED)), round_id=9) == []


# ---- what breaks ----


def test_a_record_that_could_not_be_written_grants_nothing() -> None:
    directory = Directory()
    directory.admit(g(1))
    for stage in (S0, S1):
        directory.prepared(stage, g(1))
    out = directory.written(ok=False)
    assert decisions(out) == [(g(1), directory_ev.Wait(None, directory_ev.WaitFor.DIRECTORY))]
    assert aborts(out) == {S0: (g(1),), S1: (g(1),)}
    assert deleted() in out, "it may have been written all the same"
    directory.assert_forgotten()


def test_a_record_that_could_not_be_written_ends_the_round_before_the_stages_answer() -> None:
    directory = Directory()
    directory.admit(g(1))
    (decide,) = only(directory_ev.Decide, directory.written(ok=False))
    assert decide.answered
    assert aborts(directory.prepared(S0, g(1))) == {S0: (g(1),)}
    directory.assert_forgotten()


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_a_stage_that_disconnects_voids_every_undecided_attempt(answered: int) -> None:
    directory = Directory()
    directory.admit(g(1))
    for stage in (S0, S1)[:answered]:
        directory.prepared(stage, g(1))
    out = directory.tell(directory_ev.StageDisconnected(S1))
    # Where it owed no answer, nothing that it was asked can be why.
    waits = directory_ev.Wait(S1, directory_ev.WaitFor.DIRECTORY)
    assert decisions(out) == [(g(1), waits if answered == 2 else UNANSWERED)]
    assert aborts(out) == {S0: (g(1),)}, "nothing can be sent to the one that went"
    assert directory.written() == [deleted()]
    directory.assert_forgotten()


def test_a_stage_that_is_silent_for_too_long_counts_as_gone_until_its_stream_is_made_again() -> None:
    directory = Directory()
    directory.admit(g(1), g(2))
    directory.written()
    directory.prepared(S0, g(1), g(2))
    out = directory.tell(directory_ev.RoundTimedOut(RoundId(1)))
    assert directory_ev.RemakeStream(S1) in out
    assert decisions(out) == [(g(1), UNANSWERED), (g(2), UNANSWERED)]
    assert aborts(out) == {S0: (g(1), g(2))}
    assert not directory.admission.connected(S1)
    directory.assert_forgotten()
    assert directory.tell(directory_ev.RoundTimedOut(RoundId(1))) == [], "it is over"


def test_a_stage_that_does_not_step_down_in_time_counts_as_gone_too() -> None:
    directory = lowering()
    out = directory.tell(directory_ev.RoundTimedOut(RoundId(1)))
    assert only(directory_ev.RemakeStream, out) == [directory_ev.RemakeStream(S0), directory_ev.RemakeStream(S2)]
    assert decisions(out) == [(g(1), directory_ev.Void(directory_ev.VoidReason.UNANSWERED, S0))]
    assert aborts(out) == {S1: (g(1),), S2: (g(1),)}
    directory.assert_forgotten()


def test_a_round_that_only_waits_for_the_ledger_has_all_the_time() -> None:
    directory = Directory()
    directory.admit(g(1))
    directory.prepared(S0, g(1))
    directory.prepared(S1, g(1))
    assert directory.tell(directory_ev.RoundTimedOut(RoundId(1))) == []
    assert [grant for grant, _ in decisions(directory.written())] == [g(1)]


def test_grants_outlive_the_stream_to_a_stage() -> None:
    directory = Directory()
    directory.granted(g(1))
    assert directory.tell(directory_ev.StageDisconnected(S1)) == []
    assert directory.admission.grants == {g(1)}


def test_a_stage_hears_what_ended_while_its_stream_was_being_opened() -> None:
    directory = Directory()
    directory.granted(g(1), g(2))
    directory.tell(directory_ev.StageDisconnected(S1))
    known = directory.admission.grants
    directory.tell(directory_ev.CancelAttempts((g(1),)))
    assert aborts(directory.tell(directory_ev.StageConnected(S1, "inc1", 0, known))) == {S1: (g(1),)}
    assert all(directory.admission.connected(StageIndex(i)) for i in range(2))


def test_an_epoch_forgets_every_grant_and_round_without_a_word() -> None:
    directory = Directory()
    directory.granted(g(1))
    directory.admit(g(2), batch=2)
    directory.prepared(S0, g(2), round_id=2)
    assert directory.tell(directory_ev.EpochMoved(PipelineEpoch(2))) == [deleted(1)]
    assert directory.tell(directory_ev.EpochMoved(EPOCH)) == [], "an older one moves nothing"
    assert aborts(directory.prepared(S1, g(2), round_id=2)) == {S1: (g(2),)}
    assert directory.written(2) == [deleted(2)]
    directory.assert_forgotten()


def test_a_router_that_connects_anew_keeps_what_it_runs_and_nothing_else() -> None:
    directory = Directory()
    directory.granted(g(1), g(2))
    directory.admit(g(3), batch=2)
    directory.prepared(S0, g(3), round_id=2)
    out = directory.tell(directory_ev.RouterConnected(EPOCH, frozenset((g(2), g(8)))))
    assert [i.grants for i in only(directory_ev.SendAbort, out) if i.stage == S1] == [(g(3),), (g(1),)]
    assert decisions(out) == [], "it does not wait for what it asked on the stream before"
    assert directory.admission.grants == {g(2), g(8)}
    # Nobody will report how the write of the second round ended.
    assert deleted(2) in out
    assert deleted(1) in directory.tell(directory_ev.GrantsEnded((g(2), g(8))))
    directory.assert_forgotten()


def test_a_new_directory_keeps_what_the_router_runs_and_deletes_the_rest_of_the_ledger() -> None:
    admission = Admission(directory_epoch=DirectoryEpoch(6), recurrent=(False,), block_tokens=B, alignment_tokens=B)
    old = (("old", EPOCH, (g(1),)), ("kept", EPOCH, (g(2), g(3))), ("older", PipelineEpoch(0), ()))
    admission.handle(directory_ev.LedgerLoaded(old))
    out = admission.handle(directory_ev.RouterConnected(EPOCH, frozenset((g(3),))))
    assert {r.name for r in only(directory_ev.SetRecord, out)} == {"old", "older"}
    assert admission.grants == {g(3)}


# ---- a fixed chunk grid ----


def test_endpoints_are_multiples_of_what_the_router_aligns_to() -> None:
    directory = Directory(held=4)
    directory.tell(directory_ev.RouterConnected(EPOCH, frozenset(), alignment_tokens=2 * B))
    wanted = [
        grant.endpoint_tokens for send in only(directory_ev.SendPrepare, directory.admit(g(1))) for grant in send.grants
    ]
    assert wanted == [4 * B, 4 * B]
    directory.written()
    directory.answer(S0, (g(1), Prepared(4 * B, ())))
    out = directory.answer(S1, (g(1), Prepared(3 * B, ())))
    assert only(directory_ev.SendLower, out) == [
        directory_ev.SendLower(S0, RoundId(1), ((g(1), 2 * B),)),
        directory_ev.SendLower(S1, RoundId(1), ((g(1), 2 * B),)),
    ], "three blocks are held by both, but the grid has a line only after the second"


def test_a_router_without_a_grid_gets_every_endpoint_again() -> None:
    directory = Directory(held=3)
    directory.tell(directory_ev.RouterConnected(EPOCH, frozenset(), alignment_tokens=2 * B))
    directory.tell(directory_ev.RouterConnected(EPOCH, frozenset()))
    (first, _) = only(directory_ev.SendPrepare, directory.admit(g(1)))
    assert first.grants[0].endpoint_tokens == 3 * B
