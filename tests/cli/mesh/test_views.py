"""What status and prefill print."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType

from wavepp.cli.mesh.batch import PromptOutcome
from wavepp.cli.mesh.client import Answer, CallError
from wavepp.cli.mesh.plain import to_plain
from wavepp.cli.mesh.prefill_view import answers_json, answers_table, explanation, words_of
from wavepp.cli.mesh.status_view import status_view
from wavepp.v1 import prefill_pb2, types_pb2


def rendered(what: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=160, markup=False, highlight=False).print(what)
    return out.getvalue()


def a_status() -> prefill_pb2.GetStatusResponse:
    pool = types_pb2.PoolUsage(pool="kv", capacity=1024, free=900, cached=100, pinned=20, owned=4, reserved=11)
    return prefill_pb2.GetStatusResponse(
        cluster="default",
        pipeline="p0",
        state="serving",
        pipeline_epoch=2,
        router=prefill_pb2.RouterStatus(address="127.0.0.1:1", queued=5, running=3, waves_in_flight=4, policy="mpu"),
        directory=prefill_pb2.DirectoryStatus(
            address="127.0.0.1:2", reachable=True, grants=3, hint_keys=77, stage_in_sync=[True, False]
        ),
        stages=[
            prefill_pb2.StageStatus(
                stage=0,
                reachable=True,
                incarnation="abc",
                last_layer=15,
                pools=[pool],
                leases=3,
                pid=42,
                link="out: up",
            ),
            prefill_pb2.StageStatus(stage=1, address="127.0.0.1:9", incarnation="def", first_layer=15, last_layer=30),
        ],
    )


def answer(**fields: Any) -> prefill_pb2.PrefillResponse:
    return prefill_pb2.PrefillResponse(
        token_ids=[5, 6], prompt_tokens=1000, cached_tokens=960, computed_tokens=40, finish_reason="length", **fields
    )


def test_status_shows_queue_waves_grants_hints_and_every_stage() -> None:
    shown = rendered(status_view(a_status()))
    assert "5 queued" in shown
    assert "4 waves in flight" in shown
    assert "3 grants" in shown
    assert "77 hint keys (not in sync: stage 1)" in shown
    assert "[0, 15)" in shown
    assert "abc" in shown
    for count in ("1,024", "900", "100", "20", "4", "11"):
        assert count in shown
    assert "does not answer" in shown


def learned(first_ms: float, second_ms: float) -> prefill_pb2.GetStatusResponse:
    status = a_status()
    for stage, typical_ms in enumerate((first_ms, second_ms)):
        status.router.costs.append(
            prefill_pb2.StageCostStatus(
                stage=stage, state="fitted", steps=500, launch_ms=6.25, token_us=18.5, pair_ps=70, typical_ms=typical_ms
            )
        )
    return status


def test_what_was_learned_of_the_steps_is_shown_and_uneven_layers_are_remarked_on() -> None:
    shown = rendered(status_view(learned(150.0, 100.0)))
    assert "6.25 ms" in shown
    assert "150.0 ms" in shown
    assert "with --layers 12,18 the slowest one should take 120.0 ms a step instead of 150.0 ms" in shown
    assert "uneven" not in rendered(status_view(learned(105.0, 100.0)))


def test_a_directory_that_does_not_answer_is_said_so() -> None:
    status = a_status()
    status.directory.reachable = False
    assert "directory  127.0.0.1:2: does not answer" in rendered(status_view(status))


def test_status_as_json_has_every_field_and_numbers_are_numbers() -> None:
    plain = to_plain(a_status())
    assert list(plain) == [field.name for field in prefill_pb2.GetStatusResponse.DESCRIPTOR.fields]
    assert plain["pipeline_epoch"] == 2
    assert plain["directory"]["etcd_grant_records"] == 0
    pool = plain["stages"][0]["pools"][0]
    assert pool["free"] + pool["cached"] + pool["pinned"] + pool["owned"] == pool["capacity"]
    assert plain["stages"][1]["pools"] == []
    assert plain["stages"][1]["reachable"] is False


def test_absent_messages_and_optional_fields_are_null_and_maps_keep_their_numbers() -> None:
    plain = to_plain(prefill_pb2.PrefillResponse(reuse=types_pb2.ReuseExplanation(endpoint_tokens=64)))
    assert plain["timing"] is None
    assert plain["reuse"]["limiting_stage"] is None
    assert plain["reuse"]["endpoint_tokens"] == 64
    room = to_plain(types_pb2.Room(number=2**40, available={"kv": -3}))
    assert room == {"number": 2**40, "available": {"kv": -3}}


def test_a_table_of_answers_has_counts_speed_and_words_or_the_error() -> None:
    named = [
        ("first", PromptOutcome(answer=Answer(answer(text="Paris\n it is"), 0.5, 1.0))),
        ("second", PromptOutcome(error=CallError("NOT_FOUND", "model 'x' is not served here"))),
    ]
    shown = rendered(answers_table(named))
    for part in ("1,000", "960", "40", "500 ms", "2,000", "Paris it is", "NOT_FOUND: model 'x' is not served here"):
        assert part in shown


def test_without_text_the_words_are_token_ids() -> None:
    assert words_of(answer()) == "tokens 5,6"


def test_the_explanation_names_the_stage_that_limited_reuse_and_the_room_waited_for() -> None:
    reuse = types_pb2.ReuseExplanation(
        longest_any_tokens=990,
        longest_all_tokens=970,
        endpoint_tokens=960,
        limiting_stage=1,
        waits=2,
        waited_for_stage=0,
        waited_for_pool="kv",
    )
    text = explanation(answer(reuse=reuse, waves=3, attempts=1))
    assert "agreed 960 of 1000 (limited by stage 1)" in text
    assert "3 waves, 1 attempt," in text
    assert "waited 2 times for room, last for kv on stage 0" in text


def test_answers_as_json_have_an_answer_or_an_error() -> None:
    named = [
        ("first", PromptOutcome(answer=Answer(answer(), 0.5, 1.0))),
        ("second", PromptOutcome(error=CallError("RESOURCE_EXHAUSTED", "full", 250))),
    ]
    first, second = answers_json(named)["results"]
    assert first["error"] is None
    assert first["answer"]["cached_tokens"] == 960
    assert first["client_first_token_ms"] == 500.0
    assert second["answer"] is None
    assert second["error"] == {"code": "RESOURCE_EXHAUSTED", "message": "full", "retry_after_ms": 250}
