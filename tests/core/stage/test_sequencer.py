"""What a stage decides, event by event."""

from __future__ import annotations

import pytest

from wavepp.core.cache.stage_cache import StageCache
from wavepp.core.cache.types import CacheShape, Missing, NeedKeys, Never, PoolSizes, Prepared
from wavepp.core.errors import InvariantError, PeerProtocolError
from wavepp.core.ids import GrantId, PipelineEpoch, RoundId, StageIndex, WaveId, grant_id
from wavepp.core.keys import Namespace, prefix_keys
from wavepp.core.limits import KEY_BYTES
from wavepp.core.stage import events as stage_ev
from wavepp.core.stage.grants import GrantState
from wavepp.core.stage.sequencer import JOBS_AHEAD, UNSENT_MAX, Sequencer
from wavepp.core.tokens import encode_tokens
from wavepp.core.waves.types import FailedGrant, StepTime
from wavepp.core.wire.types import FrameChunk

B = 4
EPOCH = PipelineEpoch(1)
NAMESPACE = Namespace("model", "f32", B, None, None)
STEP = StepTime(StageIndex(0), 0, 1, 0, 1)


def g(counter: int, epoch: int = 1) -> GrantId:
    return grant_id(PipelineEpoch(epoch), counter)


def keys_of(tokens: int, first: int = 0) -> bytes:
    """Keys of a prompt of that length; prompts with the same `first` share their beginning."""
    return prefix_keys(NAMESPACE, encode_tokens(range(first, first + tokens)))


def new_stage(
    index: int = 0,
    stages: int = 2,
    *,
    blocks: int = 16,
    recurrent: bool = False,
    alignment: int = B,
    snapshots: int = 4,
    waves_queued_max: int = 8,
) -> Sequencer:
    """A stage at epoch 1 with its links up."""
    sizes = PoolSizes(blocks, 4, snapshots) if recurrent else PoolSizes(blocks)
    sequencer = Sequencer(
        stage=StageIndex(index),
        stages=stages,
        cache=StageCache(CacheShape(B, alignment, recurrent, sizes, blocks)),
        waves_queued_max=waves_queued_max,
        validate=True,
    )
    sequencer.handle(stage_ev.EpochSet(EPOCH))
    sequencer.handle(stage_ev.LinksReady(EPOCH))
    return sequencer


def ask(
    grant: GrantId, prompt: int, total: int = 0, *, endpoint: int = 0, first_block: int = 0, first: int = 0
) -> stage_ev.PrepareGrant:
    keys = keys_of(prompt, first)
    before = keys[(first_block - 1) * KEY_BYTES : first_block * KEY_BYTES] if first_block else b""
    return stage_ev.PrepareGrant(
        grant, endpoint, prompt, total or prompt, first_block, keys[first_block * KEY_BYTES :], before, f"c{grant}"
    )


def prepare(
    sequencer: Sequencer, *grants: stage_ev.PrepareGrant, epoch: PipelineEpoch = EPOCH
) -> list[stage_ev.Answer]:
    out = sequencer.handle(stage_ev.PrepareArrived(RoundId(1), epoch, grants))
    (answer,) = [i for i in out if isinstance(i, stage_ev.AnswerPrepare)]
    assert [grant for grant, _ in answer.answers] == [wanted.grant for wanted in grants]
    return [a for _, a in answer.answers]


def chunk(
    grant: GrantId,
    start: int,
    length: int,
    *,
    last: bool = False,
    snapshot: bool = False,
    decode: bool = False,
    keys: bytes = b"",
) -> FrameChunk:
    return FrameChunk(grant, start, length, last, snapshot, decode, keys)


def wave(
    number: int,
    *chunks: FrameChunk,
    failed: tuple[FailedGrant, ...] = (),
    ended: tuple[GrantId, ...] = (),
    epoch: PipelineEpoch = EPOCH,
) -> stage_ev.WaveArrived:
    return stage_ev.WaveArrived(epoch, WaveId(number), chunks, failed, ended, (), 0, "payload")


def done(number: int, *failed: tuple[GrantId, str]) -> stage_ev.JobDone:
    return stage_ev.JobDone(WaveId(number), STEP, failed, f"rows {number}")


def jobs(out: list[stage_ev.Instruction]) -> list[stage_ev.RunJob]:
    return [i for i in out if isinstance(i, stage_ev.RunJob)]


def sent(out: list[stage_ev.Instruction]) -> stage_ev.SendWave:
    (instruction,) = [i for i in out if isinstance(i, stage_ev.SendWave)]
    return instruction


def compute(
    sequencer: Sequencer, number: int, *chunks: FrameChunk, ended: tuple[GrantId, ...] = ()
) -> stage_ev.SendWave:
    """Let a wave through, and onto the link."""
    sequencer.handle(wave(number, *chunks, ended=ended))
    out = sequencer.handle(done(number))
    sequencer.handle(stage_ev.WaveSent(EPOCH))
    return sent(out)


def held_keys(sequencer: Sequencer) -> set[bytes]:
    packed = b"".join(segment.keys for segment in sequencer.cache.dump())
    return {packed[i : i + KEY_BYTES] for i in range(0, len(packed), KEY_BYTES)}


def split(packed: bytes) -> list[bytes]:
    return [packed[i : i + KEY_BYTES] for i in range(0, len(packed), KEY_BYTES)]


# ---- admission ----


def test_what_follows_a_grant_without_room_is_refused_in_order() -> None:
    sequencer = new_stage(blocks=4)
    answers = prepare(sequencer, ask(g(1), 8), ask(g(2), 12), ask(g(3), 4))
    assert answers == [Prepared(0, ()), Missing("kv", 3, 2), stage_ev.Refused(stage_ev.RefusalReason.ORDER)]
    assert [r.grant for r in sequencer.grants.live()] == [g(1)]


def test_a_grant_that_never_fits_holds_nobody_up() -> None:
    answers = prepare(new_stage(blocks=4), ask(g(1), 20), ask(g(2), 4))
    assert answers == [Never("kv", 5, 4), Prepared(0, ())]


def test_a_key_that_is_not_held_asks_for_more_and_holds_up_what_follows() -> None:
    answers = prepare(new_stage(), ask(g(1), 16, endpoint=8, first_block=2), ask(g(2), 4))
    assert answers == [NeedKeys(), stage_ev.Refused(stage_ev.RefusalReason.ORDER)]


def test_a_grant_that_is_asked_for_again_takes_nothing_twice() -> None:
    sequencer = new_stage()
    prepare(sequencer, ask(g(1), 8))
    before = sequencer.cache.usage()
    assert prepare(sequencer, ask(g(1), 8)) == [Prepared(0, ())]
    assert sequencer.cache.usage() == before


def test_a_round_of_another_epoch_takes_nothing() -> None:
    sequencer = new_stage()
    assert prepare(sequencer, ask(g(1), 8), epoch=PipelineEpoch(2)) == [stage_ev.Refused(stage_ev.RefusalReason.EPOCH)]
    assert prepare(sequencer, ask(g(1, epoch=2), 8)) == [stage_ev.Refused(stage_ev.RefusalReason.ENDED)]
    assert not sequencer.grants.live()


def test_an_abort_that_overtakes_its_prepare_wins() -> None:
    sequencer = new_stage()
    sequencer.handle(stage_ev.AbortArrived((g(1),)))
    assert prepare(sequencer, ask(g(1), 8)) == [stage_ev.Refused(stage_ev.RefusalReason.ENDED)]


def test_an_abort_gives_everything_back_and_a_second_one_does_nothing() -> None:
    sequencer = new_stage()
    prepare(sequencer, ask(g(1), 8))
    for _ in range(2):
        sequencer.handle(stage_ev.AbortArrived((g(1),)))
    assert sequencer.cache.usage()["kv"].reserved == 0


def rooms(out: list[stage_ev.Instruction]) -> list[int]:
    return [i.room.available["kv"] for i in out if isinstance(i, stage_ev.ReportRoom)]


def test_room_is_told_only_to_those_who_were_refused_and_until_they_have_enough() -> None:
    sequencer = new_stage()
    out = sequencer.handle(stage_ev.PrepareArrived(RoundId(1), EPOCH, (ask(g(1), 20), ask(g(2), 20))))
    assert rooms(out) == [], "nobody waits"
    # 16 blocks of 4 tokens: 6 are free, 10 are wanted.
    out = sequencer.handle(stage_ev.PrepareArrived(RoundId(2), EPOCH, (ask(g(3), 40),)))
    (answer,) = [i for i in out if isinstance(i, stage_ev.AnswerPrepare)]
    assert isinstance(answer.answers[0][1], Missing)
    assert rooms(out) == [], "the refusal itself carries this room's number"
    assert rooms(sequencer.handle(stage_ev.AbortArrived((g(9),)))) == [], "nothing changed"
    assert rooms(sequencer.handle(stage_ev.AbortArrived((g(1),)))) == [11]
    assert rooms(sequencer.handle(stage_ev.AbortArrived((g(2),)))) == [], "enough was reported"


def test_room_is_told_again_and_again_while_it_is_not_enough() -> None:
    sequencer = new_stage()
    prepare(sequencer, *(ask(g(i), 20) for i in range(1, 4)))
    prepare(sequencer, ask(g(4), 60))
    assert rooms(sequencer.handle(stage_ev.AbortArrived((g(1),)))) == [6]
    assert rooms(sequencer.handle(stage_ev.AbortArrived((g(2),)))) == [11]
    assert rooms(sequencer.handle(stage_ev.AbortArrived((g(3),)))) == [16]
    prepare(sequencer, ask(g(5), 20))
    assert rooms(sequencer.handle(stage_ev.AbortArrived((g(5),)))) == []


def with_cached_prompt(sequencer: Sequencer, tokens: int) -> None:
    """A grant that computed `range(tokens)` and ended."""
    prepare(sequencer, ask(g(100), tokens))
    compute(sequencer, 1, chunk(g(100), 0, tokens, last=True))
    compute(sequencer, 2, ended=(g(100),))


def test_after_a_step_down_the_blocks_between_are_published_under_their_keys() -> None:
    sequencer = new_stage()
    with_cached_prompt(sequencer, 16)
    assert prepare(sequencer, ask(g(1), 20, endpoint=16, first_block=4)) == [Prepared(16, ())]
    out = sequencer.handle(stage_ev.LowerArrived(RoundId(1), ((g(1), 4), (g(7), 4))))
    assert (
        stage_ev.AnswerLower(
            RoundId(1), ((g(1), Prepared(4, ())), (g(7), stage_ev.Refused(stage_ev.RefusalReason.ENDED)))
        )
        in out
    )
    compute(sequencer, 3, chunk(g(1), 4, 16, last=True))
    assert held_keys(sequencer) == set(split(keys_of(20)))


def test_a_step_down_without_room_changes_nothing() -> None:
    sequencer = new_stage(blocks=6)
    with_cached_prompt(sequencer, 16)
    prepare(sequencer, ask(g(1), 17, endpoint=16, first_block=4), ask(g(2), 17, endpoint=16, first_block=4))
    out = sequencer.handle(stage_ev.LowerArrived(RoundId(1), ((g(1), 4),)))
    assert next(i for i in out if isinstance(i, stage_ev.AnswerLower)).answers == ((g(1), Missing("kv", 3, 0)),)
    compute(sequencer, 3, chunk(g(1), 16, 1, last=True))
    assert sequencer.grants.get(g(1)).failure == ""  # type: ignore[union-attr]


def test_a_step_up_or_one_that_comes_too_late_is_answered_with_what_is_held() -> None:
    sequencer = new_stage()
    with_cached_prompt(sequencer, 8)
    prepare(sequencer, ask(g(1), 12, endpoint=8))
    for endpoint in (8, 12):
        out = sequencer.handle(stage_ev.LowerArrived(RoundId(1), ((g(1), endpoint),)))
        assert stage_ev.AnswerLower(RoundId(1), ((g(1), Prepared(8, ())),)) in out
    sequencer.handle(wave(3, chunk(g(1), 8, 4, last=True)))
    out = sequencer.handle(stage_ev.LowerArrived(RoundId(1), ((g(1), 4),)))
    assert stage_ev.AnswerLower(RoundId(1), ((g(1), Prepared(8, ())),)) in out


def test_a_directory_that_knows_nothing_of_a_grant_ends_it_unless_a_wave_has_named_it() -> None:
    sequencer = new_stage()
    prepare(sequencer, ask(g(1), 4), ask(g(2), 4), ask(g(3), 4))
    sequencer.handle(wave(1, chunk(g(3), 0, 4, last=True)))
    sequencer.handle(stage_ev.DirectoryConnected(frozenset((g(2),))))
    assert [r.grant for r in sequencer.grants.live()] == [g(2), g(3)]


# ---- recurrent stages ----


def test_where_the_latest_snapshot_lies_before_the_window_the_keys_between_are_kept() -> None:
    sequencer = new_stage(recurrent=True)
    prepare(sequencer, ask(g(1), 16))
    compute(sequencer, 1, chunk(g(1), 0, 4, snapshot=True))
    compute(sequencer, 2, chunk(g(1), 4, 12, last=True), ended=())
    compute(sequencer, 3, ended=(g(1),))
    # All blocks are held, but the only snapshot is after the first one.
    assert prepare(sequencer, ask(g(2), 20, endpoint=16, first_block=4)) == [Prepared(4, (4,))]
    compute(sequencer, 4, chunk(g(2), 4, 16, last=True))
    record = sequencer.grants.get(g(2))
    assert record is not None
    assert not record.failure
    assert held_keys(sequencer) == set(split(keys_of(20)))


def test_the_first_chunk_restores_its_snapshot_and_later_ones_go_on_from_the_state() -> None:
    sequencer = new_stage(recurrent=True)
    prepare(sequencer, ask(g(1), 8))
    (job,) = jobs(sequencer.handle(wave(1, chunk(g(1), 0, 8, last=True, snapshot=True))))
    (kept,) = job.chunks
    assert kept.restore_slot is None, "there is nothing to start from"
    assert kept.state_slot is not None
    assert kept.snapshot_slot is not None
    sequencer.handle(done(1))
    prepare(sequencer, ask(g(2), 16, endpoint=8))
    (job,) = jobs(sequencer.handle(wave(2, chunk(g(2), 8, 4))))
    assert job.chunks[0].restore_slot == kept.snapshot_slot
    (job,) = jobs(sequencer.handle(wave(3, chunk(g(2), 12, 4, last=True))))
    assert job.chunks[0].restore_slot is None
    assert job.chunks[0].state_slot not in (None, kept.state_slot)


def test_a_snapshot_at_an_impossible_place_fails_its_grant() -> None:
    sequencer = new_stage(recurrent=True, alignment=8)
    prepare(sequencer, ask(g(1), 16))
    frame = compute(sequencer, 1, chunk(g(1), 0, 4, snapshot=True))
    assert frame.failed == (FailedGrant(g(1), StageIndex(0), "snapshot after 4 tokens, no multiple of 8"),)


# ---- waves and jobs ----


def test_at_most_two_jobs_are_with_the_executor_and_the_rest_waits_in_order() -> None:
    sequencer = new_stage(1)
    started = [j.wave for n in range(1, 5) for j in jobs(sequencer.handle(wave(n)))]
    assert started == [1, 2]
    assert JOBS_AHEAD == 2
    assert sequencer.waves_queued == 4
    assert not sequencer.wants_wave
    assert [j.wave for j in jobs(sequencer.handle(done(1)))] == [3]
    assert not sequencer.wants_wave
    sequencer.handle(done(2))
    assert sequencer.wants_wave


def test_blocks_are_taken_when_the_job_is_handed_over() -> None:
    sequencer = new_stage()
    prepare(sequencer, *(ask(g(n), 4, first=100 * n) for n in (1, 2, 3)))
    for n in (1, 2, 3):
        sequencer.handle(wave(n, chunk(g(n), 0, 4, last=True)))
    usage = sequencer.cache.usage()["kv"]
    assert (usage.owned, usage.reserved) == (2, 1)


def test_a_job_carries_tables_rows_and_context() -> None:
    sequencer = new_stage(0, 1)
    prepare(sequencer, ask(g(1), 6), ask(g(2), 8, first=50))
    (job,) = jobs(sequencer.handle(wave(1, chunk(g(1), 0, 6, last=True), chunk(g(2), 0, 4))))
    first, second = job.chunks
    assert (len(first.table), first.row, first.sample, first.context) == (2, 0, True, f"c{g(1)}")
    assert (len(second.table), second.row, second.sample) == (1, 6, False)
    assert job.payload == "payload"


def test_only_the_last_stage_samples() -> None:
    sequencer = new_stage(0, 2)
    prepare(sequencer, ask(g(1), 4))
    (job,) = jobs(sequencer.handle(wave(1, chunk(g(1), 0, 4, last=True))))
    assert not job.chunks[0].sample


def test_a_lone_stage_reports_its_step_and_the_wave() -> None:
    sequencer = new_stage(0, 1)
    sequencer.handle(wave(1))
    out = sequencer.handle(stage_ev.JobDone(WaveId(1), STEP, (), None, ("sample",)))
    assert stage_ev.ReportStep(EPOCH, WaveId(1), STEP) in out
    assert stage_ev.ReportWave(EPOCH, WaveId(1), (), (STEP,), ("sample",)) in out


@pytest.mark.parametrize("wanted", [False, True])
def test_a_middle_stage_adds_its_step_and_reports_no_wave_and_its_step_where_that_is_wanted(wanted: bool) -> None:
    sequencer = new_stage(1, 3)
    sequencer.handle(stage_ev.EpochSet(EPOCH, not wanted))
    sequencer.handle(stage_ev.EpochSet(EPOCH, wanted))
    earlier = StepTime(StageIndex(0), 0, 9, 0, 1)
    sequencer.handle(stage_ev.WaveArrived(EPOCH, WaveId(1), (), (), (), (earlier,), 7, None))
    out = sequencer.handle(done(1))
    assert (sent(out).steps, sent(out).issued_ns, sent(out).output) == ((earlier, STEP), 7, "rows 1")
    reports = [i for i in out if isinstance(i, stage_ev.ReportStep | stage_ev.ReportWave)]
    assert reports == ([stage_ev.ReportStep(EPOCH, WaveId(1), STEP)] if wanted else [])


def test_a_stage_whose_next_one_is_slow_waits_and_goes_on_when_the_link_took_a_wave() -> None:
    sequencer = new_stage(0, 2)
    for n in range(1, 6):
        sequencer.handle(wave(n))
    assert UNSENT_MAX == 2
    assert [j.wave for j in jobs(sequencer.handle(done(1)))] == [3]
    assert not jobs(sequencer.handle(done(2)))
    assert not jobs(sequencer.handle(stage_ev.WaveSent(PipelineEpoch(0)))), "word of an older epoch frees nothing"
    assert [j.wave for j in jobs(sequencer.handle(stage_ev.WaveSent(EPOCH)))] == [4]


def test_the_last_stage_never_waits_for_a_link() -> None:
    sequencer = new_stage(1, 2)
    for n in range(1, 9):
        sequencer.handle(wave(n))
        sequencer.handle(done(n))
    assert sequencer.waves_done == 8


def test_a_job_that_was_not_running_is_a_fault() -> None:
    sequencer = new_stage()
    sequencer.handle(wave(1))
    with pytest.raises(InvariantError):
        sequencer.handle(done(2))


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_wave_out_of_order_or_after_a_gap_is_refused(number: int) -> None:
    sequencer = new_stage()
    sequencer.handle(wave(2))
    with pytest.raises(PeerProtocolError):
        sequencer.handle(wave(number))


def test_more_waves_than_a_ring_are_refused() -> None:
    sequencer = new_stage(waves_queued_max=3)
    for n in range(1, JOBS_AHEAD + 4):
        sequencer.handle(wave(n))
    with pytest.raises(PeerProtocolError):
        sequencer.handle(wave(JOBS_AHEAD + 4))


# ---- chunks that do not fit ----


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (chunk(g(1), 4, 4), "chunk starts at 4, this stage is at 0"),
        (chunk(g(1), 0, 16), "chunk ends at 16, 12 tokens are reserved"),
        (chunk(g(1), 0, 12), "chunk ends at 12, the prompt at 8"),
    ],
)
def test_a_chunk_that_does_not_fit_fails_its_grant_for_good_and_the_wave_goes_on(bad: FrameChunk, reason: str) -> None:
    sequencer = new_stage()
    prepare(sequencer, ask(g(1), 8, 12), ask(g(2), 4, first=90))
    good = chunk(g(2), 0, 4, last=True)
    (job,) = jobs(sequencer.handle(wave(1, bad, good)))
    assert [(c.grant, c.row) for c in job.chunks] == [(g(2), bad.length)], "its rows are in the payload"
    frame = sent(sequencer.handle(done(1)))
    assert frame.chunks == (good,)
    assert frame.failed == (FailedGrant(g(1), StageIndex(0), reason),)
    assert compute(sequencer, 2, chunk(g(1), 0, 8)).failed == frame.failed
    assert held_keys(sequencer) == set(split(keys_of(4, 90)))


@pytest.mark.parametrize(("end_first", "reason"), [(False, "grant unknown"), (True, "grant ended")])
def test_a_chunk_of_no_grant_fails_alone(end_first: bool, reason: str) -> None:
    sequencer = new_stage()
    if end_first:
        prepare(sequencer, ask(g(1), 4))
        sequencer.handle(stage_ev.AbortArrived((g(1),)))
    assert compute(sequencer, 1, chunk(g(1), 0, 4)).failed == (FailedGrant(g(1), StageIndex(0), reason),)


def test_what_failed_on_an_earlier_stage_has_no_rows_here_and_never_runs_again() -> None:
    sequencer = new_stage(1, 3)
    prepare(sequencer, ask(g(1), 8), ask(g(2), 4, first=90))
    failed = FailedGrant(g(1), StageIndex(0), "no")
    (job,) = jobs(sequencer.handle(wave(1, chunk(g(1), 0, 4), chunk(g(2), 0, 4), failed=(failed,))))
    assert [(c.grant, c.row) for c in job.chunks] == [(g(2), 0)]
    assert sent(sequencer.handle(done(1))).failed == (failed,)
    frame = compute(sequencer, 2, chunk(g(1), 0, 4))
    assert frame.failed == (FailedGrant(g(1), StageIndex(1), "failed on an earlier stage"),)


def test_output_that_is_not_finite_is_neither_passed_on_nor_published() -> None:
    sequencer = new_stage(1, 3)
    prepare(sequencer, ask(g(1), 8), ask(g(2), 4, first=90))
    good = chunk(g(2), 0, 4, last=True)
    sequencer.handle(wave(1, chunk(g(1), 0, 4), good))
    sequencer.handle(wave(2, chunk(g(1), 4, 4, last=True)))
    frame = sent(sequencer.handle(done(1, (g(1), "not finite"))))
    assert (frame.chunks, frame.failed) == ((good,), (FailedGrant(g(1), StageIndex(1), "not finite"),))
    # The next chunk was with the executor already; it came out finite, but was computed on what was not.
    sequencer.handle(done(2))
    assert held_keys(sequencer) == set(split(keys_of(4, 90)))


def test_a_grant_that_ended_while_its_job_ran_publishes_nothing() -> None:
    sequencer = new_stage()
    prepare(sequencer, ask(g(1), 8))
    sequencer.handle(wave(1, chunk(g(1), 0, 4)))
    sequencer.handle(wave(2, ended=(g(1),)))
    sequencer.handle(done(1))
    assert held_keys(sequencer) == set()
    assert sequencer.cache.usage()["kv"].free == 16


def test_an_end_reaches_a_grant_that_no_wave_has_named() -> None:
    sequencer = new_stage()
    prepare(sequencer, ask(g(1), 8))
    assert compute(sequencer, 1, ended=(g(1), g(5))).ended == (g(1), g(5))
    assert not sequencer.grants.live()


def test_an_end_waits_for_its_wave_and_does_no_harm_to_the_chunks_before_it() -> None:
    sequencer = new_stage()
    prepare(sequencer, ask(g(1), 8), ask(g(2), 16))
    for number in range(JOBS_AHEAD):
        sequencer.handle(wave(1 + number, chunk(g(2), 4 * number, 4)))
    sequencer.handle(wave(JOBS_AHEAD + 1, chunk(g(1), 0, 8)))
    sequencer.handle(wave(JOBS_AHEAD + 2, ended=(g(1),)))
    assert sequencer.grants.get(g(1)) is not None
    (job,) = jobs(sequencer.handle(done(1)))
    assert [c.grant for c in job.chunks] == [g(1)]
    sequencer.handle(stage_ev.WaveSent(EPOCH))
    (job,) = jobs(sequencer.handle(done(2)))
    assert job.chunks == ()
    assert sequencer.grants.get(g(1)) is None


def test_an_abort_does_not_end_a_grant_whose_wave_waits_here() -> None:
    sequencer = new_stage()
    prepare(sequencer, ask(g(1), 4))
    for n in (1, 2):
        sequencer.handle(wave(n))
    sequencer.handle(wave(3, chunk(g(1), 0, 4, last=True)))
    sequencer.handle(stage_ev.AbortArrived((g(1),)))
    record = sequencer.grants.get(g(1))
    assert record is not None
    assert record.state is GrantState.RUNNING
    sequencer.handle(done(1))
    sequencer.handle(done(2))
    sequencer.handle(stage_ev.WaveSent(EPOCH))
    assert sent(sequencer.handle(done(3))).failed == ()


# ---- decoding ----


def test_a_block_that_decoding_fills_is_published_under_the_key_that_came_with_it() -> None:
    sequencer = new_stage()
    prepare(sequencer, ask(g(1), 6, 9))
    compute(sequencer, 1, chunk(g(1), 0, 6, last=True))
    compute(sequencer, 2, chunk(g(1), 6, 1, last=True, decode=True))
    assert held_keys(sequencer) == set(split(keys_of(6)))
    key = b"k" * KEY_BYTES
    compute(sequencer, 3, chunk(g(1), 7, 1, last=True, decode=True, keys=key))
    assert held_keys(sequencer) == {*split(keys_of(6)), key}


def test_a_decode_step_without_the_key_that_it_needs_fails_its_grant() -> None:
    sequencer = new_stage()
    prepare(sequencer, ask(g(1), 7, 10))
    compute(sequencer, 1, chunk(g(1), 0, 7, last=True))
    compute(sequencer, 2, chunk(g(1), 7, 1, last=True, decode=True))
    (failed,) = compute(sequencer, 3, chunk(g(1), 8, 1, last=True, decode=True)).failed
    assert failed.reason == "0 keys came for the 1 blocks that end at token 8"


# ---- epochs ----


def acks(out: list[stage_ev.Instruction]) -> list[PipelineEpoch]:
    return [i.epoch for i in out if isinstance(i, stage_ev.AckEpoch)]


def test_a_new_epoch_ends_every_grant_and_drops_the_queue() -> None:
    sequencer = new_stage()
    prepare(sequencer, ask(g(1), 4), ask(g(2), 4, first=90))
    sequencer.handle(wave(1, chunk(g(1), 0, 4, last=True)))
    sequencer.handle(wave(2))
    sequencer.handle(wave(3))
    sequencer.handle(stage_ev.EpochSet(PipelineEpoch(2)))
    assert not sequencer.grants.live()
    assert sequencer.waves_queued == JOBS_AHEAD, "what the executor has cannot be taken back"
    assert not jobs(sequencer.handle(done(1)))
    assert not [i for i in sequencer.handle(done(2)) if isinstance(i, stage_ev.SendWave)]
    assert held_keys(sequencer) == set()


def test_an_epoch_is_acknowledged_when_older_jobs_are_done_and_the_links_are_up() -> None:
    sequencer = new_stage()
    sequencer.handle(wave(1))
    epoch = PipelineEpoch(2)
    assert not acks(sequencer.handle(stage_ev.EpochSet(epoch)))
    assert not acks(sequencer.handle(stage_ev.LinksReady(epoch)))
    assert not acks(sequencer.handle(stage_ev.LinksReady(EPOCH))), "late word of the links before"
    assert acks(sequencer.handle(done(1))) == [epoch]
    assert not acks(sequencer.handle(stage_ev.AbortArrived(()))), "once"


def test_the_links_of_an_older_epoch_do_not_count() -> None:
    sequencer = new_stage()
    sequencer.handle(stage_ev.EpochSet(PipelineEpoch(2)))
    assert not acks(sequencer.handle(stage_ev.LinksReady(EPOCH)))
    assert acks(sequencer.handle(stage_ev.LinksReady(PipelineEpoch(2)))) == [2]


def test_an_epoch_that_is_set_again_is_acknowledged_again_and_changes_nothing() -> None:
    sequencer = new_stage()
    prepare(sequencer, ask(g(1), 4))
    assert acks(sequencer.handle(stage_ev.EpochSet(EPOCH))) == [EPOCH]
    assert [r.grant for r in sequencer.grants.live()] == [g(1)]


def test_waves_of_another_epoch_never_run() -> None:
    sequencer = new_stage()
    sequencer.handle(stage_ev.EpochSet(PipelineEpoch(2)))
    assert not jobs(sequencer.handle(wave(1)))
    with pytest.raises(PeerProtocolError):
        sequencer.handle(wave(1, epoch=PipelineEpoch(3)))
    with pytest.raises(PeerProtocolError):
        sequencer.handle(stage_ev.EpochSet(EPOCH))
    assert [j.wave for j in jobs(sequencer.handle(wave(7, epoch=PipelineEpoch(2))))] == [7]


def test_waves_that_the_old_link_never_took_do_not_hold_up_the_new_epoch() -> None:
    sequencer = new_stage(0, 2)
    for n in (1, 2):
        sequencer.handle(wave(n))
        sequencer.handle(done(n))
    assert not jobs(sequencer.handle(wave(3))), "the link is slow"
    sequencer.handle(stage_ev.EpochSet(PipelineEpoch(2)))
    assert jobs(sequencer.handle(wave(4, epoch=PipelineEpoch(2))))


def test_a_stage_that_lost_its_lease_ends_everything_and_is_silent_until_the_next_epoch() -> None:
    sequencer = new_stage(0, 1)
    prepare(sequencer, ask(g(1), 8))
    sequencer.handle(wave(1, chunk(g(1), 0, 4)))
    sequencer.handle(stage_ev.LeaseLost())
    assert not sequencer.grants.live()
    out = [*sequencer.handle(done(1)), *sequencer.handle(wave(2))]
    assert not [i for i in out if isinstance(i, stage_ev.ReportWave | stage_ev.ReportStep | stage_ev.RunJob)]
    sequencer.handle(stage_ev.EpochSet(PipelineEpoch(2)))
    assert jobs(sequencer.handle(wave(3, epoch=PipelineEpoch(2))))
