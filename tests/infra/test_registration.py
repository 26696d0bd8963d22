"""What makes stages one pipeline, and what a registration must be."""

from __future__ import annotations

import pytest

from wavepp.infra.registration import RegistrationError, StageRegistration, check_fit, check_pipeline


def stage(index: int, **changes: object) -> StageRegistration:
    facts: dict[str, object] = {
        "stage": index,
        "stages": 3,
        "incarnation": f"i{index}",
        "address": f"127.0.0.1:{9000 + index}",
        "link_address": "",
        "first_layer": 4 * index,
        "last_layer": 4 * index + 4,
        "layers_total": 12,
        "model_name": "m",
        "model_type": "llama",
        "fingerprint": "f",
        "vocab_size": 100,
        "tokens_max": 1000,
        "dtype": "float32",
        "cache_dtype": "float32",
        "block_tokens": 64,
        "alignment_tokens": 64,
        "wave_tokens_max": 512,
        "wave_requests_max": 8,
        "eos_token_ids": (1,),
        "recurrent": False,
        "emulated": False,
        "kv_blocks": 10,
        "state_slots": 0,
        "snapshot_slots": 0,
    }
    return StageRegistration.model_validate(facts | changes)


def test_stages_that_follow_each_other_are_a_pipeline() -> None:
    check_pipeline([stage(0), stage(1), stage(2)])


def test_stages_may_have_pools_of_different_sizes() -> None:
    check_pipeline([stage(0), stage(1, kv_blocks=5), stage(2)])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fingerprint", "other"),
        ("block_tokens", 32),
        ("wave_tokens_max", 256),
        ("wave_requests_max", 64),
        ("stages", 4),
        ("layers_total", 24),
        ("cache_dtype", "bfloat16"),
        ("emulated", True),
    ],
)
def test_a_stage_that_differs_is_named_with_both_values(field: str, value: object) -> None:
    with pytest.raises(RegistrationError) as raised:
        check_fit(stage(1), stage(0, **{field: value}))
    assert field in str(raised.value)
    assert repr(value) in str(raised.value)


def test_layers_must_follow_each_other() -> None:
    with pytest.raises(RegistrationError, match="ends at layer 4, stage 1 begins at layer 5"):
        check_fit(stage(1, first_layer=5), stage(0))


def test_the_first_and_last_layers_must_be_there() -> None:
    with pytest.raises(RegistrationError, match="of 12"):
        check_pipeline([stage(0), stage(1), stage(2, last_layer=11)])


def test_a_registration_survives_etcd() -> None:
    assert StageRegistration.decode(stage(1).encode()) == stage(1)


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b"\xff", b'{"stage": -1}'])
def test_what_is_no_registration_is_refused(value: bytes) -> None:
    with pytest.raises(RegistrationError):
        StageRegistration.decode(value)
