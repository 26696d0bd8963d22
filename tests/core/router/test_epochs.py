"""When the epoch moves, and when the pipeline serves."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.errors import TransitionError
from wavepp.core.ids import Incarnation, PipelineEpoch, StageIndex
from wavepp.core.router.epochs import (
    TRANSITIONS,
    Acked,
    Announce,
    Broken,
    Draining,
    EpochEvent,
    EpochKeeper,
    EpochPhase,
    Event,
    LinkBroken,
    Raised,
    RaiseEpoch,
    Ready,
    StageDown,
    StageDraining,
    StageUp,
    Stalled,
)


def up(stage: int, incarnation: str = "") -> StageUp:
    name = incarnation or f"inc{stage}"
    return StageUp(StageIndex(stage), Incarnation(name), f"link:{name}")


def down(stage: int) -> StageDown:
    return StageDown(StageIndex(stage), "gone")


def raised(epoch: int) -> Raised:
    return Raised(PipelineEpoch(epoch))


def acked(stage: int, epoch: int) -> Acked:
    return Acked(StageIndex(stage), PipelineEpoch(epoch))


def serving(stages: int = 2, epoch: int = 1) -> EpochKeeper:
    keeper = EpochKeeper(stages)
    for stage in range(stages):
        keeper.handle(up(stage))
    keeper.handle(raised(epoch))
    for stage in range(stages):
        keeper.handle(acked(stage, epoch))
    assert keeper.phase is EpochPhase.READY
    return keeper


def test_what_is_not_in_the_table_is_refused_with_the_story() -> None:
    for phase, event in itertools.product(EpochPhase, EpochEvent):
        keeper = serving()
        keeper.phase = phase
        if (phase, event) in TRANSITIONS:
            keeper.apply(event)
            assert keeper.phase is TRANSITIONS[phase, event]
        else:
            with pytest.raises(TransitionError, match="waiting for stages:all stages up"):
                keeper.apply(event)


def test_whatever_breaks_is_foreseen_in_every_phase() -> None:
    assert {phase for phase, event in TRANSITIONS if event is EpochEvent.BROKEN} == set(EpochPhase)


@given(
    st.lists(st.sampled_from(["up", "down", "drains", "link", "stalled", "raised", "acked"]), max_size=30), st.data()
)
def test_nothing_that_comes_in_any_order_is_impossible_while_one_epoch_is_raised_at_a_time(
    names: list[str], data: st.DataObject
) -> None:
    keeper, raises = EpochKeeper(2), 0
    for name in names:
        stage, epoch = data.draw(st.integers(0, 1)), PipelineEpoch(keeper.epoch - data.draw(st.integers(0, 1)))
        event: Event
        match name:
            case "up":
                event = up(stage)
            case "down":
                event = down(stage)
            case "drains":
                event = StageDraining(StageIndex(stage))
            case "link":
                event = LinkBroken(StageIndex(stage), epoch, "cut")
            case "stalled":
                event = Stalled(epoch, "x")
            case "raised" if raises:
                raises, event = raises - 1, raised(keeper.epoch + 1)
            case _:
                event = Acked(StageIndex(stage), epoch)
        raises += sum(isinstance(i, RaiseEpoch) for i in keeper.handle(event))
        assert raises == (keeper.phase in (EpochPhase.RAISING, EpochPhase.RAISING_AGAIN))
        assert not (keeper.missing and keeper.phase in (EpochPhase.RAISING, EpochPhase.ANNOUNCED, EpochPhase.READY))
        assert not keeper.draining & set(keeper.missing)


def test_the_epoch_is_raised_when_the_last_stage_is_up() -> None:
    keeper = EpochKeeper(2)
    assert keeper.handle(up(1)) == []
    assert keeper.missing == (0,)
    assert keeper.handle(up(0)) == [RaiseEpoch(1)]


def test_every_stage_hears_of_the_next_one() -> None:
    keeper = EpochKeeper(3)
    for stage in (0, 1, 2):
        keeper.handle(up(stage))
    assert keeper.handle(raised(4)) == [
        Announce(StageIndex(0), PipelineEpoch(4), "link:inc1", "inc1"),
        Announce(StageIndex(1), PipelineEpoch(4), "link:inc2", "inc2"),
        Announce(StageIndex(2), PipelineEpoch(4), "", ""),
    ]


def test_the_pipeline_serves_when_all_have_acknowledged_this_epoch() -> None:
    keeper = EpochKeeper(2)
    keeper.handle(up(0))
    keeper.handle(up(1))
    keeper.handle(raised(3))
    assert keeper.handle(acked(0, 3)) == []
    assert keeper.waiting_for == {1}
    assert keeper.handle(acked(1, 2)) == [], "an older epoch"
    assert keeper.handle(acked(1, 3)) == [Ready(PipelineEpoch(3))]
    assert keeper.handle(acked(1, 3)) == [], "once"


@pytest.mark.parametrize(
    "event",
    [
        up(1, "other"),
        LinkBroken(StageIndex(0), PipelineEpoch(1), "cut"),
        Stalled(PipelineEpoch(1), "no wave done"),
    ],
)
def test_whatever_breaks_while_all_stages_are_up_moves_the_epoch_at_once(event: StageUp | LinkBroken | Stalled) -> None:
    keeper = serving()
    broken, raise_epoch = keeper.handle(event)
    assert isinstance(broken, Broken)
    assert broken.reason == keeper.reason
    assert raise_epoch == RaiseEpoch(1)


def test_it_says_which_stages_are_other_processes_than_when_the_pipeline_last_worked() -> None:
    keeper = serving(3)
    keeper.handle(up(1, "second"))
    keeper.handle(raised(2))
    keeper.handle(acked(0, 2))
    # Another one dies before the pipeline works again, and a link breaks.
    keeper.handle(down(2))
    keeper.handle(up(2, "third"))
    keeper.handle(raised(3))
    keeper.handle(LinkBroken(StageIndex(0), PipelineEpoch(3), "cut"))
    announced = [a for a in keeper.handle(raised(4)) if isinstance(a, Announce)]
    assert [a.report_steps for a in announced] == [True] * 3
    ready = [keeper.handle(acked(stage, 4)) for stage in range(3)][-1]
    assert ready == [Ready(PipelineEpoch(4), frozenset({StageIndex(1), StageIndex(2)}))]
    keeper.handle(LinkBroken(StageIndex(0), PipelineEpoch(4), "cut"))
    announced = [a for a in keeper.handle(raised(5)) if isinstance(a, Announce)]
    assert [a.report_steps for a in announced] == [False] * 3
    assert [keeper.handle(acked(stage, 5)) for stage in range(3)][-1] == [Ready(PipelineEpoch(5))]


def test_a_stage_that_drained_before_it_went_did_not_die() -> None:
    keeper = serving()
    assert keeper.handle(StageDraining(StageIndex(1))) == [Draining(frozenset({StageIndex(1)}))]
    assert keeper.handle(StageDraining(StageIndex(1))) == [], "again"
    assert keeper.phase is EpochPhase.READY
    assert keeper.handle(down(1)) == [Broken("stage 1: it has stopped"), Draining(frozenset())]
    keeper.handle(up(1, "second"))
    announced = [a for a in keeper.handle(raised(2)) if isinstance(a, Announce)]
    assert [a.report_steps for a in announced] == [False] * 2
    assert [keeper.handle(acked(stage, 2)) for stage in range(2)][-1] == [Ready(PipelineEpoch(2))]


def test_a_stage_that_connects_drains_only_if_it_says_so_anew() -> None:
    keeper = serving()
    keeper.handle(StageDraining(StageIndex(0)))
    assert Draining(frozenset()) in keeper.handle(up(0))
    assert keeper.handle(StageDraining(StageIndex(0))) == [Draining(frozenset({StageIndex(0)}))]
    keeper.handle(down(1))
    assert keeper.handle(StageDraining(StageIndex(1))) == [], "it is gone already"


def test_a_stage_that_went_is_waited_for() -> None:
    keeper = serving()
    assert keeper.handle(down(1)) == [Broken("stage 1: gone")]
    assert keeper.phase is EpochPhase.GATHERING
    assert keeper.handle(down(1)) == [], "again"
    assert keeper.handle(up(1)) == [RaiseEpoch(1)]


@pytest.mark.parametrize("event", [LinkBroken(StageIndex(0), PipelineEpoch(1), "cut"), Stalled(PipelineEpoch(1), "x")])
def test_news_of_an_older_epoch_or_before_there_is_one_moves_nothing(event: LinkBroken | Stalled) -> None:
    keeper = serving(epoch=2)
    assert keeper.handle(event) == []
    assert keeper.phase is EpochPhase.READY
    keeper.handle(down(0))
    assert keeper.handle(Stalled(PipelineEpoch(2), "x")) == []


def test_what_breaks_while_the_epoch_is_raised_raises_it_once_more() -> None:
    keeper = serving()
    keeper.handle(up(0, "second"))
    assert keeper.handle(up(0, "third")) == [], "one raise at a time"
    assert keeper.handle(raised(2)) == [RaiseEpoch(1)]
    announced = keeper.handle(raised(3))
    assert [i.next_incarnation for i in announced if isinstance(i, Announce)][-1] == ""
    assert [i.stage for i in announced if isinstance(i, Announce)] == [0, 1]
    assert keeper.epoch == 3


def test_a_stage_that_goes_while_the_epoch_is_raised_is_waited_for() -> None:
    keeper = serving()
    keeper.handle(up(0, "second"))
    keeper.handle(down(1))
    assert keeper.handle(raised(2)) == []
    assert keeper.phase is EpochPhase.GATHERING
    assert keeper.handle(up(1, "back")) == [RaiseEpoch(1)]


def test_an_acknowledgement_that_comes_before_a_break_does_not_count_after_it() -> None:
    keeper = EpochKeeper(2)
    keeper.handle(up(0))
    keeper.handle(up(1))
    keeper.handle(raised(1))
    keeper.handle(acked(0, 1))
    keeper.handle(Stalled(PipelineEpoch(1), "no acknowledgement"))
    keeper.handle(raised(2))
    assert keeper.handle(acked(1, 1)) == []
    assert keeper.waiting_for == {0, 1}


def test_tries_grow_until_the_pipeline_serves() -> None:
    keeper = serving()
    assert RaiseEpoch(1) in keeper.handle(Stalled(PipelineEpoch(1), "x"))
    keeper.handle(raised(2))
    assert RaiseEpoch(2) in keeper.handle(Stalled(PipelineEpoch(2), "x"))
    keeper.handle(raised(3))
    keeper.handle(acked(0, 3))
    keeper.handle(acked(1, 3))
    assert RaiseEpoch(1) in keeper.handle(Stalled(PipelineEpoch(3), "x"))


def test_epochs_in_vain_come_ever_more_slowly_until_one_serves() -> None:
    keeper, pauses = serving(), []
    for epoch in range(1, 9):
        (instruction,) = [
            i for i in keeper.handle(LinkBroken(StageIndex(0), PipelineEpoch(epoch), "x")) if isinstance(i, RaiseEpoch)
        ]
        pauses.append(instruction.pause_s)
        keeper.handle(raised(epoch + 1))
    assert pauses == [0.0, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0, 4.0]
    keeper.handle(acked(0, 9))
    keeper.handle(acked(1, 9))
    assert RaiseEpoch(1) in keeper.handle(LinkBroken(StageIndex(0), PipelineEpoch(9), "x"))


def in_vain(times: int) -> EpochKeeper:
    """The epoch was raised so often in vain, and is to be raised again."""
    keeper = serving()
    for epoch in range(1, times + 1):
        keeper.handle(Stalled(PipelineEpoch(epoch), "x"))
        keeper.handle(raised(epoch + 1))
    keeper.handle(Stalled(PipelineEpoch(times + 1), "x"))
    assert keeper.phase is EpochPhase.RAISING
    return keeper


def test_another_process_of_a_stage_does_not_wait_for_what_failed_before_it_came() -> None:
    keeper = in_vain(6)
    assert keeper.tries > 1
    keeper.handle(up(1, "another"))
    assert keeper.tries == 0, "whoever pauses before the raise need not go on with it"
    assert keeper.handle(raised(8)) == [RaiseEpoch(1)]


def test_a_stream_that_comes_and_goes_does_not_hurry_the_epochs() -> None:
    keeper = in_vain(6)
    keeper.handle(down(1))
    keeper.handle(up(1))
    (instruction,) = keeper.handle(raised(8))
    assert instruction == RaiseEpoch(8)


def test_an_epoch_that_nobody_raised_or_that_is_not_higher_is_a_fault() -> None:
    keeper = serving()
    with pytest.raises(TransitionError):
        keeper.handle(raised(2))
    keeper.handle(Stalled(PipelineEpoch(1), "x"))
    with pytest.raises(TransitionError):
        keeper.handle(raised(1))
