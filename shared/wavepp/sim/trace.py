"""Reader for request traces in the format that Mooncake publishes: one JSON object a line, perhaps in gzip.

`timestamp` (ms), `input_length` and `output_length` (tokens), `hash_ids`: one id for every block of 512 tokens of the
prompt, the last one of which may be partial; prompts with equal first ids have equal first tokens.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wavepp.core.errors import InvalidInputError
from wavepp.core.limits import PROMPT_TOKENS_MAX
from wavepp.sim.keyed import KeyedAsk, chain_keys

TRACE_BLOCK_TOKENS: Final = 512
_LINE_BYTES_MAX: Final = 1024 * 1024
_TIMESTAMP_MAX: Final = 1 << 53
_HASH_ID_MAX: Final = (1 << 64) - 1


class TraceError(InvalidInputError):
    """A line is not what the format says. `line` is counted from 1; 0: the file itself."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"trace {path.name}, line {line}: {problem}" if line else f"trace {path.name}: {problem}")
        self.line = line


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace."""

    timestamp_ms: int
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]

    def ask(self, number: int) -> KeyedAsk:
        """It as prefill work, in blocks of 512 tokens. A last block that is not full has no key."""
        full = self.prompt_tokens // TRACE_BLOCK_TOKENS
        return KeyedAsk(self.prompt_tokens, chain_keys(self.hash_ids[:full]), number)


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """In the file's order, which is that of time. Raises TraceError."""
    before_ms = 0
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            request = _request(line)
            if request.timestamp_ms < before_ms:
                raise InvalidInputError(f"timestamp {request.timestamp_ms} after {before_ms}: sort the trace by time")
        except InvalidInputError as error:
            raise TraceError(path, number, str(error)) from error
        before_ms = request.timestamp_ms
        yield request


def timed_asks(requests: Iterable[TraceRequest]) -> Iterator[tuple[float, KeyedAsk]]:
    """(time in ms, request), as `clients.replay` takes them."""
    for number, request in enumerate(requests):
        yield float(request.timestamp_ms), request.ask(number)


def _lines(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            lines = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw
            while line := lines.readline(_LINE_BYTES_MAX + 1):
                number += 1
                if len(line) > _LINE_BYTES_MAX:
                    raise TraceError(path, number, f"longer than {_LINE_BYTES_MAX} bytes")
                yield line
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(path, number and number + 1, f"cannot be read: {reason}") from error


def _request(line: bytes) -> TraceRequest:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidInputError("not a JSON object")
    prompt_tokens = _number(fields, "input_length", 1, PROMPT_TOKENS_MAX)
    hash_ids = fields.get("hash_ids")
    blocks = -(-prompt_tokens // TRACE_BLOCK_TOKENS)
    if not isinstance(hash_ids, list) or len(hash_ids) != blocks:
        raise InvalidInputError(
            f"hash_ids must be a list of {blocks}, one for every {TRACE_BLOCK_TOKENS} of {prompt_tokens} tokens"
        )
    if not all(type(one) is int and 0 <= one <= _HASH_ID_MAX for one in hash_ids):
        raise InvalidInputError(f"hash_ids must be integers in [0, {_HASH_ID_MAX}]")
    return TraceRequest(
        timestamp_ms=_number(fields, "timestamp", 0, _TIMESTAMP_MAX),
        prompt_tokens=prompt_tokens,
        output_tokens=_number(fields, "output_length", 0, PROMPT_TOKENS_MAX),
        hash_ids=tuple(hash_ids),
    )


def _number(fields: dict[str, object], name: str, least: int, most: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not least <= value <= most:
        raise InvalidInputError(f"{name} must be an integer in [{least}, {most}]; it is {value!r:.40}")
    return value
