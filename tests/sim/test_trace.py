"""Reading traces, and prompts without tokens."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from wavepp.core.errors import InvalidInputError
from wavepp.core.limits import KEY_BYTES
from wavepp.sim.keyed import chain_keys
from wavepp.sim.trace import TraceError, read_trace, timed_asks

GOOD = {"timestamp": 10, "input_length": 1_300, "output_length": 5, "hash_ids": [7, 8, 9]}


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_a_trace_is_read_plain_and_packed(tmp_path: Path) -> None:
    plain = written(tmp_path / "trace.jsonl", GOOD, "", {**GOOD, "timestamp": 12, "output_length": 0})
    packed = tmp_path / "trace.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    requests = list(read_trace(plain))
    assert requests == list(read_trace(packed))
    assert [(r.timestamp_ms, r.prompt_tokens, r.output_tokens, r.hash_ids) for r in requests] == [
        (10, 1_300, 5, (7, 8, 9)),
        (12, 1_300, 0, (7, 8, 9)),
    ]


def test_full_blocks_have_keys_and_equal_prefixes_have_equal_ones(tmp_path: Path) -> None:
    other = {**GOOD, "hash_ids": [7, 8, 10], "input_length": 1_536}
    moved = {**GOOD, "hash_ids": [6, 8, 9], "input_length": 1_536}
    path = written(tmp_path / "trace.jsonl", GOOD, other, moved)
    (time_ms, first), (_, second), (_, third) = timed_asks(read_trace(path))
    assert (time_ms, first.number, second.number) == (10.0, 0, 1)
    assert len(first.keys) == 2 * KEY_BYTES, "the last of 1,300 tokens do not fill a block"
    assert second.keys[: 2 * KEY_BYTES] == first.keys
    assert len({first.keys[KEY_BYTES:], third.keys[KEY_BYTES : 2 * KEY_BYTES]}) == 2, "keys are chained"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ({k: v for k, v in GOOD.items() if k != "timestamp"}, "timestamp must be"),
        ({**GOOD, "timestamp": -1}, "timestamp must be"),
        ({**GOOD, "timestamp": 9}, "sort the trace"),
        ({**GOOD, "input_length": 0}, "input_length must be"),
        ({**GOOD, "input_length": True}, "input_length must be"),
        ({**GOOD, "input_length": 1 << 40}, "input_length must be"),
        ({**GOOD, "output_length": 1.5}, "output_length must be"),
        ({**GOOD, "hash_ids": [7, 8]}, "a list of 3"),
        ({**GOOD, "hash_ids": "789"}, "a list of 3"),
        ({**GOOD, "hash_ids": [7, 8, -9]}, "integers in"),
        ({**GOOD, "hash_ids": [7, 8, 1 << 64]}, "integers in"),
        ({**GOOD, "hash_ids": [7, 8, None]}, "integers in"),
        (" " * (1 << 20) + json.dumps(GOOD), "longer than"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: object, says: str) -> None:
    path = written(tmp_path / "trace.jsonl", GOOD, line)
    with pytest.raises(TraceError, match=says) as error:
        list(read_trace(path))
    assert error.value.line == 2
    assert "trace.jsonl, line 2" in str(error.value)


def test_what_is_no_trace_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        list(read_trace(tmp_path / "absent"))
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(json.dumps(GOOD).encode() * 100)[:-20])
    with pytest.raises(TraceError):
        list(read_trace(cut))
    text = tmp_path / "bytes"
    text.write_bytes(b"\xff\xfe\n")
    with pytest.raises(TraceError, match="not JSON"):
        list(read_trace(text))


def test_an_id_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="block id"):
        chain_keys([1 << 64])
