"""Verifies what came in a frame's header, value by value; every failure is a `FrameError`.

msgpack gives untyped values, hence `Any`: each goes through one of these functions before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgpack

from wavepp.core.ids import GrantId, StageIndex
from wavepp.core.limits import (
    CHUNK_KEYS_MAX,
    FRAME_HEADER_BYTES_MAX,
    FRAME_TENSORS_MAX,
    KEY_BYTES,
    NAME_BYTES_MAX,
    STAGES_MAX,
    TENSOR_RANK_MAX,
    WAVE_REQUESTS_MAX,
)
from wavepp.core.waves.types import FailedGrant, StepTime
from wavepp.core.wire.prologue import FrameError
from wavepp.core.wire.types import DTYPE_BYTES, POSITION_MAX, REASON_BYTES_MAX, FrameChunk, TensorSpec

if TYPE_CHECKING:
    from typing_extensions import Buffer

FLAG_LAST: Final = 1
FLAG_SNAPSHOT: Final = 2
FLAG_DECODE: Final = 4

_FLAGS_ALL: Final = FLAG_LAST | FLAG_SNAPSHOT | FLAG_DECODE
_INT_END: Final = 1 << 63
_ARRAY_MAX: Final = max(WAVE_REQUESTS_MAX, STAGES_MAX, FRAME_TENSORS_MAX)


def unpack(data: Buffer) -> Any:
    """One msgpack value, with nothing after it and nothing in it that is larger than any header may hold."""
    view = memoryview(data).cast("B")
    if len(view) > FRAME_HEADER_BYTES_MAX:
        raise FrameError(f"header of {len(view)} bytes; at most {FRAME_HEADER_BYTES_MAX}")
    try:
        return msgpack.unpackb(
            view,
            use_list=False,
            max_array_len=_ARRAY_MAX,
            max_map_len=0,
            max_ext_len=0,
            max_str_len=max(REASON_BYTES_MAX, NAME_BYTES_MAX),
            max_bin_len=CHUNK_KEYS_MAX * KEY_BYTES,
        )
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        # ValueError covers bad UTF-8, limits, nesting, trailing bytes and a value that ends too early.
        raise FrameError(f"header is not valid msgpack: {error}") from error


def read_row(value: Any, fields: int, what: str) -> tuple[Any, ...]:
    if type(value) is not tuple or len(value) != fields:
        raise FrameError(f"{what} is not an array of {fields} fields")
    return value


def _rows(value: Any, rows_max: int, what: str) -> tuple[Any, ...]:
    if type(value) is not tuple or len(value) > rows_max:
        raise FrameError(f"{what}: not an array of at most {rows_max}")
    return value


def read_count(value: Any, what: str) -> int:
    # `type` and not `isinstance`: True and False are no counts.
    if type(value) is not int or not 0 <= value < _INT_END:
        raise FrameError(f"{what} is {_shown(value)}, not an integer in [0, 2**63)")
    return value


def _stage(value: Any, what: str) -> StageIndex:
    stage = read_count(value, what)
    if stage >= STAGES_MAX:
        raise FrameError(f"{what} is {stage}; at most {STAGES_MAX - 1}")
    return StageIndex(stage)


def _text(value: Any, bytes_max: int, what: str) -> str:
    if type(value) is not str or len(value.encode()) > bytes_max:
        raise FrameError(f"{what} is not text of at most {bytes_max} bytes")
    return value


def _unique(items: Sequence[Any], what: str) -> None:
    if len(set(items)) != len(items):
        raise FrameError(f"{what} occurs twice")


def read_chunks(value: Any) -> tuple[FrameChunk, ...]:
    chunks = []
    for row in _rows(value, WAVE_REQUESTS_MAX, "chunks"):
        grant, start, length, flags, keys = read_row(row, 5, "chunk")
        read_count(grant, "chunk's grant")
        read_count(start, "chunk's start")
        if read_count(length, "chunk's length") < 1 or start + length > POSITION_MAX:
            raise FrameError(f"grant {grant}: chunk [{start}, {start} + {length}) is empty or beyond {POSITION_MAX}")
        if read_count(flags, "chunk's flags") > _FLAGS_ALL:
            raise FrameError(f"grant {grant}: flags {flags:#x} are unknown")
        if flags & FLAG_DECODE and length != 1:
            raise FrameError(f"grant {grant}: a decode chunk of {length} tokens; it has one")
        if type(keys) is not bytes or len(keys) % KEY_BYTES or len(keys) > CHUNK_KEYS_MAX * KEY_BYTES:
            raise FrameError(f"grant {grant}: keys are not at most {CHUNK_KEYS_MAX} keys of {KEY_BYTES} bytes")
        chunks.append(
            FrameChunk(
                grant,
                start,
                length,
                bool(flags & FLAG_LAST),
                bool(flags & FLAG_SNAPSHOT),
                bool(flags & FLAG_DECODE),
                keys,
            )
        )
    _unique([chunk.grant for chunk in chunks], "a chunk's grant")
    return tuple(chunks)


def read_failed(value: Any) -> tuple[FailedGrant, ...]:
    failed = []
    for row in _rows(value, WAVE_REQUESTS_MAX, "failed grants"):
        grant, stage, reason = read_row(row, 3, "failed grant")
        failed.append(
            FailedGrant(
                GrantId(read_count(grant, "failed grant")),
                _stage(stage, "stage of a failed grant"),
                _text(reason, REASON_BYTES_MAX, "reason of a failed grant"),
            )
        )
    _unique([entry.grant for entry in failed], "a failed grant")
    return tuple(failed)


def read_ended(value: Any) -> tuple[GrantId, ...]:
    ended = tuple(
        GrantId(read_count(grant, "ended grant")) for grant in _rows(value, WAVE_REQUESTS_MAX, "ended grants")
    )
    _unique(ended, "an ended grant")
    return ended


def read_tensors(value: Any) -> tuple[TensorSpec, ...]:
    tensors = []
    for row in _rows(value, FRAME_TENSORS_MAX, "tensors"):
        name, dtype, shape = read_row(row, 3, "tensor")
        if not _text(name, NAME_BYTES_MAX, "tensor's name"):
            raise FrameError("a tensor has no name")
        if type(dtype) is not str or dtype not in DTYPE_BYTES:
            raise FrameError(f"tensor {name!r}: element type {_shown(dtype)} is unknown")
        dimensions = _rows(shape, TENSOR_RANK_MAX, f"shape of tensor {name!r}")
        tensors.append(
            TensorSpec(name, dtype, tuple(read_count(d, f"dimension of tensor {name!r}") for d in dimensions))
        )
    _unique([tensor.name for tensor in tensors], "a tensor's name")
    return tuple(tensors)


def read_steps(value: Any) -> tuple[StepTime, ...]:
    steps = []
    for row in _rows(value, STAGES_MAX, "steps"):
        stage, start_ns, duration_ns, queued_ns, tokens = read_row(row, 5, "step")
        steps.append(
            StepTime(
                _stage(stage, "stage of a step"),
                read_count(start_ns, "start of a step"),
                read_count(duration_ns, "duration of a step"),
                read_count(queued_ns, "wait of a step"),
                read_count(tokens, "tokens of a step"),
            )
        )
    _unique([step.stage for step in steps], "a step's stage")
    return tuple(steps)


def _shown(value: Any) -> str:
    # Not repr() of anything: deep nesting would end in a RecursionError.
    return repr(value) if type(value) in (int, str, bool) else type(value).__name__
