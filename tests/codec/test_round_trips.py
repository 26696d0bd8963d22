"""Every internal message: what one side encodes is what the other side decodes, through the bytes of the wire."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from wavepp.codec import admission, control, rounds
from wavepp.codec.frames import WavePayload, decode_frame, encode_frame
from wavepp.codec.types import decode_reuse, decode_room, decode_step, encode_reuse, encode_room, encode_step
from wavepp.core.cache.types import (
    PINS,
    POOLS,
    CacheChange,
    CacheChanges,
    ChangeKind,
    DumpSegment,
    Missing,
    NeedKeys,
    Never,
    Prepared,
    Room,
)
from wavepp.core.directory import events as directory_ev
from wavepp.core.directory.reuse_endpoint import ReuseExplanation
from wavepp.core.errors import InvariantError, PeerProtocolError
from wavepp.core.ids import GrantId, PipelineEpoch, PrefixKey, RequestId, RoundId, StageIndex, WaveId
from wavepp.core.limits import CHUNK_KEYS_MAX, KEY_BYTES, ROUND_ATTEMPTS_MAX, TOKEN_BYTES, WAVE_REQUESTS_MAX
from wavepp.core.router import epochs as ep
from wavepp.core.router import events as router_ev
from wavepp.core.stage import events as stage_ev
from wavepp.core.waves.types import ChosenToken, Chunk, FailedGrant, StepTime
from wavepp.core.wire.types import FrameChunk, TensorSpec
from wavepp.core.wire.wave_header import FrameHeader
from wavepp.v1 import directory_pb2, stage_pb2, types_pb2

BLOCK_TOKENS = 4
POOL_NAMES = (*POOLS, PINS)
M = TypeVar("M", bound=Message)


def sent(message: M) -> M:
    """The message as it is on the other side."""
    return type(message).FromString(message.SerializeToString())


u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
i63 = st.integers(0, 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
grants = st.builds(GrantId, u64)
grant_lists = st.lists(grants, max_size=4).map(tuple)
epochs = st.builds(PipelineEpoch, u64)
waves = st.builds(WaveId, u64)
round_ids = st.builds(RoundId, u64)
stages = st.builds(StageIndex, st.integers(0, 63))
keys = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
packed_keys = st.lists(keys, max_size=4).map(b"".join)
logprobs = st.floats(width=32, allow_nan=False)
contexts = st.builds(types_pb2.GrantContext, request_id=texts, traceparent=texts)

steps = st.builds(StepTime, stages, i63, i63, i63, u32)
rooms = st.builds(Room, u64, st.dictionaries(st.sampled_from(POOL_NAMES), i63))
reuses = st.builds(ReuseExplanation, u32, u32, u32, u32, u32, st.none() | stages)
chosen_tokens = st.builds(ChosenToken, u32, logprobs, st.lists(st.tuples(u32, logprobs), max_size=3).map(tuple))


@st.composite
def attempts(draw: st.DrawFn) -> directory_ev.Attempt:
    prompt = draw(st.integers(1, 20))
    blocks = prompt // BLOCK_TOKENS
    named = draw(st.lists(keys, min_size=blocks, max_size=blocks))
    return directory_ev.Attempt(draw(grants), prompt, prompt + draw(st.integers(0, 9)), b"".join(named), draw(contexts))


verdicts = (
    st.builds(directory_ev.Granted, u32, reuses)
    | st.builds(directory_ev.Wait, st.none() | stages, st.sampled_from(directory_ev.WaitFor), i63, u64)
    | st.builds(directory_ev.NeverFits, stages, texts, i63, i63)
    | st.builds(directory_ev.Void, st.sampled_from(directory_ev.VoidReason), st.none() | stages)
)


@st.composite
def prepare_grants(draw: st.DrawFn) -> stage_ev.PrepareGrant:
    prompt, first_block = draw(st.integers(1, 1000)), draw(st.integers(0, 3))
    return stage_ev.PrepareGrant(
        grant=draw(grants),
        endpoint_tokens=draw(st.integers(0, prompt - 1)),
        prompt_tokens=prompt,
        total_tokens=prompt + draw(st.integers(0, 9)),
        first_block=first_block,
        keys=draw(packed_keys),
        key_before=draw(keys) if first_block else b"",
        context=draw(contexts),
    )


answers = (
    st.builds(Prepared, u32, st.lists(u32, max_size=4).map(tuple))
    | st.builds(NeedKeys)
    | st.builds(Missing, st.sampled_from(POOL_NAMES), i63, i63)
    | st.builds(Never, texts, i63, i63)
    | st.builds(stage_ev.Refused, st.sampled_from(stage_ev.RefusalReason))
)
answered = st.lists(st.tuples(grants, answers), max_size=4).map(tuple)


@st.composite
def issued_chunks(draw: st.DrawFn) -> router_ev.IssuedChunk:
    length = draw(st.integers(1, 5))
    chunk = Chunk(draw(grants), draw(u32), length, draw(st.booleans()), draw(st.booleans()), draw(st.booleans()))
    tokens = draw(st.binary(min_size=length * TOKEN_BYTES, max_size=length * TOKEN_BYTES))
    return router_ev.IssuedChunk(chunk, RequestId("r"), tokens, draw(packed_keys))


# ---- shared parts ----


@given(steps, rooms, reuses)
def test_parts_of_messages_come_back(step: StepTime, room: Room, reuse: ReuseExplanation) -> None:
    assert decode_step(sent(encode_step(step))) == step
    assert decode_room(sent(encode_room(room))) == room
    assert decode_reuse(sent(encode_reuse(reuse))) == reuse


# ---- admission ----


@given(u64, epochs, st.lists(attempts(), max_size=4))
def test_admit_comes_back(batch: int, epoch: PipelineEpoch, asked: list[directory_ev.Attempt]) -> None:
    command = sent(admission.encode_command(router_ev.SendAdmit(batch, epoch, tuple(asked))))
    assert admission.decode_command(command, BLOCK_TOKENS) == directory_ev.Admit(batch, epoch, tuple(asked))


@given(grant_lists, epochs)
def test_what_became_of_grants_comes_back(ids: tuple[GrantId, ...], epoch: PipelineEpoch) -> None:
    pairs = (
        (router_ev.SendCancel(ids), directory_ev.CancelAttempts(ids)),
        (router_ev.SendComputed(ids), directory_ev.GrantsComputed(ids)),
        (router_ev.SendEnded(ids), directory_ev.GrantsEnded(ids)),
        (directory_ev.EpochMoved(epoch), directory_ev.EpochMoved(epoch)),
    )
    for said, heard in pairs:
        assert admission.decode_command(sent(admission.encode_command(said)), BLOCK_TOKENS) == heard


@given(u64, st.lists(st.tuples(grants, verdicts), max_size=4).map(tuple), st.booleans())
def test_decisions_come_back(
    batch: int, decisions: tuple[tuple[GrantId, directory_ev.Verdict], ...], complete: bool
) -> None:
    event = sent(admission.encode_decide(directory_ev.Decide(batch, decisions, complete)))
    assert admission.decode_decisions(event.decisions) == router_ev.Decided(batch, decisions, complete)


# ---- rounds ----


@given(stages, round_ids, epochs, st.lists(prepare_grants(), max_size=4).map(tuple))
def test_prepare_comes_back(
    stage: StageIndex, round_id: RoundId, epoch: PipelineEpoch, wanted: tuple[stage_ev.PrepareGrant, ...]
) -> None:
    command = sent(rounds.encode_prepare(directory_ev.SendPrepare(stage, round_id, epoch, wanted)))
    assert rounds.decode_prepare(command.prepare) == stage_ev.PrepareArrived(round_id, epoch, wanted)


@given(stages, round_ids, st.lists(st.tuples(grants, u32), max_size=4).map(tuple), grant_lists)
def test_lower_and_abort_come_back(
    stage: StageIndex, round_id: RoundId, lower: tuple[tuple[GrantId, int], ...], ids: tuple[GrantId, ...]
) -> None:
    lowered = sent(rounds.encode_lower(directory_ev.SendLower(stage, round_id, lower)))
    assert rounds.decode_lower(lowered.lower) == stage_ev.LowerArrived(round_id, lower)
    aborted = sent(rounds.encode_abort(directory_ev.SendAbort(stage, ids)))
    assert rounds.decode_abort(aborted.abort) == stage_ev.AbortArrived(ids)


@given(stages, round_ids, answered, rooms)
def test_answers_come_back_and_refusals_for_room_carry_its_number(
    stage: StageIndex, round_id: RoundId, given_answers: tuple[tuple[GrantId, stage_ev.Answer], ...], room: Room
) -> None:
    expected = tuple((g, a, room.number if isinstance(a, Missing) else 0) for g, a in given_answers)
    prepared = sent(rounds.encode_answers(stage_ev.AnswerPrepare(round_id, given_answers), room))
    lowered = sent(rounds.encode_answers(stage_ev.AnswerLower(round_id, given_answers), room))
    assert (prepared.WhichOneof("event"), lowered.WhichOneof("event")) == ("prepared", "lowered")
    heard = rounds.decode_answers(stage, prepared.prepared, lowered=False)
    assert heard == directory_ev.StageAnswered(stage, round_id, expected, lowered=False)
    heard = rounds.decode_answers(stage, lowered.lowered, lowered=True)
    assert heard == directory_ev.StageAnswered(stage, round_id, expected, lowered=True)


@given(
    stages, texts, u64, st.booleans(), st.lists(st.tuples(st.sampled_from(ChangeKind), keys.map(PrefixKey)), max_size=5)
)
def test_changes_of_a_cache_come_back(
    stage: StageIndex, incarnation: str, first: int, gap: bool, listed: list[tuple[ChangeKind, PrefixKey]]
) -> None:
    changes = tuple(CacheChange(kind, key) for kind, key in listed)
    event = sent(rounds.encode_changes(incarnation, CacheChanges(first, changes, gap)))
    heard = rounds.decode_changes(stage, event.changes)
    assert heard == directory_ev.CacheChanged(stage, incarnation, first, changes, gap)


@given(stages, texts, u64, packed_keys, packed_keys, st.booleans())
def test_a_dump_of_a_cache_comes_back(
    stage: StageIndex, incarnation: str, cursor: int, held: bytes, snapshots: bytes, last: bool
) -> None:
    event = sent(rounds.encode_dump(incarnation, DumpSegment(cursor, held, snapshots, last)))
    heard = rounds.decode_dump(stage, event.dump)
    assert heard == directory_ev.CacheDumped(stage, incarnation, held, snapshots, last, cursor)


# ---- control ----


@given(stages, epochs, texts, texts)
def test_an_epoch_and_its_acknowledgement_come_back(
    stage: StageIndex, epoch: PipelineEpoch, address: str, incarnation: str
) -> None:
    announce = ep.Announce(stage, epoch, address, incarnation, bool(epoch % 2))
    assert control.decode_announce(stage, sent(control.encode_announce(announce)).epoch) == announce
    assert control.decode_ack(stage, sent(control.encode_ack(stage_ev.AckEpoch(epoch))).epoch) == ep.Acked(stage, epoch)


@given(stages, epochs, st.text(st.characters(exclude_categories=["Cs"]), max_size=600))
def test_a_lost_link_comes_back_with_its_reason_cut_to_the_limit(
    stage: StageIndex, epoch: PipelineEpoch, reason: str
) -> None:
    heard = control.decode_link_lost(stage, sent(control.encode_link_lost(epoch, reason)).link_lost)
    assert heard == ep.LinkBroken(stage, epoch, reason[: control.LINK_LOST_CHARS_MAX])


@given(waves, epochs, st.lists(issued_chunks(), max_size=4).map(tuple), grant_lists, i63, i63)
def test_a_wave_comes_back(
    wave: WaveId,
    epoch: PipelineEpoch,
    issued: tuple[router_ev.IssuedChunk, ...],
    ended: tuple[GrantId, ...],
    issued_ns: int,
    arrived_ns: int,
) -> None:
    command = sent(control.encode_wave(router_ev.IssueWave(wave, epoch, issued, ended), issued_ns))
    assert control.decode_wave(command.wave, arrived_ns) == stage_ev.WaveArrived(
        epoch=epoch,
        wave=wave,
        chunks=tuple(FrameChunk(**_fields(one.chunk), keys=one.keys) for one in issued),
        failed=(),
        ended=ended,
        steps=(),
        issued_ns=issued_ns,
        payload=WavePayload(arrived_ns, b"".join(one.token_bytes for one in issued), ()),
    )


@given(
    waves,
    epochs,
    st.lists(steps, max_size=4).map(tuple),
    st.lists(st.tuples(grants, chosen_tokens), max_size=4).map(tuple),
    st.lists(st.builds(FailedGrant, grants, stages, texts), max_size=4).map(tuple),
)
def test_a_finished_wave_comes_back(
    wave: WaveId,
    epoch: PipelineEpoch,
    taken: tuple[StepTime, ...],
    samples: tuple[tuple[GrantId, ChosenToken], ...],
    failed: tuple[FailedGrant, ...],
) -> None:
    event = sent(control.encode_wave_done(stage_ev.ReportWave(epoch, wave, failed, taken, samples)))
    assert control.decode_wave_done(event.wave) == router_ev.WaveDone(epoch, wave, samples, failed, taken)


@given(stages, waves, epochs, steps, rooms)
def test_a_finished_step_and_room_come_back(
    stage: StageIndex, wave: WaveId, epoch: PipelineEpoch, step: StepTime, room: Room
) -> None:
    event = sent(control.encode_step_done(stage_ev.ReportStep(epoch, wave, step)))
    assert control.decode_step_done(stage, event.step) == router_ev.StepDone(stage, epoch, wave)
    assert control.decode_room_report(stage, sent(control.encode_room_report(room)).room) == router_ev.RoomChanged(
        stage, room
    )


# ---- frames ----


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=4), i63, i63)
def test_a_frame_comes_back_through_its_header_and_joined_payload(
    shapes: list[tuple[int, int]], issued_ns: int, arrived_ns: int
) -> None:
    tensors = tuple(
        (TensorSpec(f"t{i}", "uint8", shape), bytes([i]) * (shape[0] * shape[1])) for i, shape in enumerate(shapes)
    )
    wave = stage_ev.SendWave(
        epoch=PipelineEpoch(3),
        wave=WaveId(7),
        chunks=(FrameChunk(GrantId(1), 0, 5, last=True, keys=bytes(KEY_BYTES)),),
        failed=(FailedGrant(GrantId(2), StageIndex(0), "why"),),
        ended=(GrantId(4),),
        steps=(StepTime(StageIndex(0), 1, 2, 3, 5),),
        issued_ns=issued_ns,
        output=tensors,
    )
    header, buffers = encode_frame(wave)
    payload = b"".join(bytes(buffer) for buffer in buffers)
    heard = decode_frame(FrameHeader.decode(header.encode(), len(payload)), memoryview(payload), arrived_ns)
    assert heard.payload == WavePayload(arrived_ns, None, tensors)
    assert _fields(replace(heard, payload=None)) == {**_fields(wave, without="output"), "payload": None}


# ---- what no peer of ours sends ----


@pytest.mark.parametrize(
    "command",
    [
        directory_pb2.AdmissionCommand(),
        directory_pb2.AdmissionCommand(hello=directory_pb2.AdmissionHello()),
        directory_pb2.AdmissionCommand(
            admit=directory_pb2.Admit(attempts=[directory_pb2.AdmitAttempt(prompt_tokens=4, total_tokens=4)])
        ),
        directory_pb2.AdmissionCommand(
            admit=directory_pb2.Admit(attempts=[directory_pb2.AdmitAttempt(prompt_tokens=3, total_tokens=2)])
        ),
        directory_pb2.AdmissionCommand(
            admit=directory_pb2.Admit(
                attempts=[directory_pb2.AdmitAttempt(prompt_tokens=1, total_tokens=1)] * (ROUND_ATTEMPTS_MAX + 1)
            )
        ),
    ],
)
def test_a_command_that_no_router_sends_is_refused(command: directory_pb2.AdmissionCommand) -> None:
    with pytest.raises(PeerProtocolError):
        admission.decode_command(command, BLOCK_TOKENS)


def test_an_instruction_that_is_not_for_the_directory_is_a_fault() -> None:
    with pytest.raises(InvariantError, match="RetryAfter"):
        admission.encode_command(router_ev.RetryAfter(1))


def test_decisions_and_answers_without_content_are_refused() -> None:
    with pytest.raises(PeerProtocolError):
        admission.decode_decisions(directory_pb2.Decisions(decisions=[directory_pb2.Decision(grant=1)]))
    empty = stage_pb2.PrepareAnswer(grants=[stage_pb2.GrantAnswer(grant=1)])
    with pytest.raises(PeerProtocolError):
        rounds.decode_answers(StageIndex(0), empty, lowered=False)


def test_reasons_that_only_another_release_knows_end_their_attempt_alone() -> None:
    refused = stage_pb2.GrantAnswer(grant=1, refused=stage_pb2.Refused(reason="mood"))
    prepared = stage_pb2.GrantAnswer(grant=2, prepared=stage_pb2.Prepared(endpoint_tokens=64))
    answer = stage_pb2.PrepareAnswer(grants=[refused, prepared])
    heard = rounds.decode_answers(StageIndex(0), answer, lowered=False)
    assert heard.answers[0][1] == stage_ev.Refused(stage_ev.RefusalReason.OTHER)
    assert heard.answers[1][1] == Prepared(64, ())
    void = directory_pb2.Decision(grant=1, void=directory_pb2.Void(reason="mood"))
    ((_, verdict),) = admission.decode_decisions(directory_pb2.Decisions(decisions=[void])).decisions
    assert verdict == directory_ev.Void(directory_ev.VoidReason.OTHER)


def test_words_that_one_side_passes_on_are_words_of_the_other() -> None:
    assert {*POOLS, PINS} < {*directory_ev.WaitFor}
    assert {*stage_ev.RefusalReason} - {stage_ev.RefusalReason.ORDER} < {*directory_ev.VoidReason}
    assert stage_ev.RefusalReason.ORDER in {*directory_ev.WaitFor}


@pytest.mark.parametrize("decision", [directory_pb2.Decision(wait=directory_pb2.Wait(pool="seats"))])
def test_a_decision_that_is_unknown_here_is_refused(decision: directory_pb2.Decision) -> None:
    with pytest.raises(PeerProtocolError, match="run the same release everywhere"):
        admission.decode_decisions(directory_pb2.Decisions(decisions=[decision]))


@pytest.mark.parametrize(
    "answer",
    [
        stage_pb2.GrantAnswer(missing=stage_pb2.Missing(pool="seats")),
        stage_pb2.GrantAnswer(missing=stage_pb2.Missing(pool="order")),
    ],
)
def test_an_answer_that_is_unknown_here_is_refused(answer: stage_pb2.GrantAnswer) -> None:
    with pytest.raises(PeerProtocolError, match="run the same release everywhere"):
        rounds.decode_answers(StageIndex(0), stage_pb2.PrepareAnswer(grants=[answer]), lowered=False)


@pytest.mark.parametrize(
    "grant",
    [
        stage_pb2.PrepareGrant(prompt_tokens=2, total_tokens=1),
        stage_pb2.PrepareGrant(prompt_tokens=2, total_tokens=2, endpoint_tokens=2),
        stage_pb2.PrepareGrant(prompt_tokens=2, total_tokens=2, keys=b"cut"),
        stage_pb2.PrepareGrant(prompt_tokens=2, total_tokens=2, first_block=1),
        stage_pb2.PrepareGrant(prompt_tokens=2, total_tokens=2, key_before=bytes(KEY_BYTES)),
    ],
)
def test_a_prepare_that_contradicts_itself_is_refused(grant: stage_pb2.PrepareGrant) -> None:
    with pytest.raises(PeerProtocolError):
        rounds.decode_prepare(stage_pb2.Prepare(grants=[grant]))


def test_a_prepare_of_too_many_grants_is_refused() -> None:
    one = stage_pb2.PrepareGrant(prompt_tokens=1, total_tokens=1)
    assert len(rounds.decode_prepare(stage_pb2.Prepare(grants=[one] * ROUND_ATTEMPTS_MAX)).grants) == ROUND_ATTEMPTS_MAX
    with pytest.raises(PeerProtocolError):
        rounds.decode_prepare(stage_pb2.Prepare(grants=[one] * (ROUND_ATTEMPTS_MAX + 1)))


@pytest.mark.parametrize(
    "chunks",
    [
        [stage_pb2.Chunk(length=0)],
        [stage_pb2.Chunk(length=2, token_bytes=bytes(TOKEN_BYTES))],
        [stage_pb2.Chunk(length=1, token_bytes=bytes(TOKEN_BYTES), keys=b"cut")],
        [stage_pb2.Chunk(length=1, token_bytes=bytes(TOKEN_BYTES), keys=bytes(KEY_BYTES * (CHUNK_KEYS_MAX + 1)))],
        [stage_pb2.Chunk(length=1, token_bytes=bytes(TOKEN_BYTES))] * (WAVE_REQUESTS_MAX + 1),
    ],
)
def test_a_wave_that_contradicts_itself_is_refused(chunks: list[stage_pb2.Chunk]) -> None:
    with pytest.raises(PeerProtocolError):
        control.decode_wave(stage_pb2.Wave(wave=1, chunks=chunks), 0)


def test_a_change_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(PeerProtocolError):
        rounds.decode_changes(StageIndex(0), stage_pb2.CacheChanges(changes=[stage_pb2.CacheChange(key=bytes(16))]))


def test_a_dump_with_a_cut_key_is_refused() -> None:
    with pytest.raises(PeerProtocolError):
        rounds.decode_dump(StageIndex(0), stage_pb2.CacheDump(keys=b"cut"))


def _fields(record: Any, without: str = "") -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in fields(record) if f.name != without}
