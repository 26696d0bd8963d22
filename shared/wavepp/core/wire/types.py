"""The parts of a frame's header."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import GrantId

DTYPE_BYTES: Final = {
    "bool": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
"""Element types that may cross a cut, and their sizes. The list is closed: a frame with another is refused."""

REASON_BYTES_MAX: Final = 512
POSITION_MAX: Final = 2**31 - 1
"""Chunk ends; models count positions in 32 bits."""


@dataclass(frozen=True, slots=True)
class FrameChunk:
    """Tokens [start, start + length) of a grant.

    `last`, `snapshot` and `decode` are those of the planned chunk. `keys`: packed keys of the blocks that it
    fills and that Prepare did not name.
    """

    grant: GrantId
    start: int
    length: int
    last: bool = False
    snapshot: bool = False
    decode: bool = False
    keys: bytes = b""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of the payload: C-contiguous, little-endian, in the order of the header. Dimensions may be 0."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in the payload. `InvalidInputError` for an element type that may not cross a cut."""
        size = DTYPE_BYTES.get(self.dtype)
        if size is None:
            known = ", ".join(DTYPE_BYTES)
            raise InvalidInputError(f"tensor {self.name!r}: element type {self.dtype!r}; it must be one of {known}")
        for dimension in self.shape:
            size *= dimension
        return size


Buffer: TypeAlias = bytes | bytearray | memoryview
NamedTensor: TypeAlias = tuple[TensorSpec, Buffer]
"""A tensor as it crosses a cut: C-contiguous, little-endian, `spec.shape[0]` rows."""
