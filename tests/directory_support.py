"""A stage as a directory finds it registered."""

from __future__ import annotations

from wavepp.infra.registration import StageRegistration

STAGE = StageRegistration(
    stage=0,
    stages=1,
    incarnation="i",
    address="127.0.0.1:1",
    link_address="",
    first_layer=0,
    last_layer=1,
    layers_total=1,
    model_name="m",
    model_type="llama",
    fingerprint="f",
    vocab_size=100,
    tokens_max=1000,
    dtype="float32",
    cache_dtype="float32",
    block_tokens=32,
    alignment_tokens=32,
    wave_tokens_max=192,
    wave_requests_max=8,
    eos_token_ids=(),
    recurrent=False,
    emulated=False,
    kv_blocks=10,
    state_slots=0,
    snapshot_slots=0,
)
