"""The header of a wave's frame: what a stage tells the next one.

On the wire it is one msgpack array of arrays, no maps: fields go by position. It is verified before anything
in it is used (`header_checks`). A 64-byte prologue comes before it (`prologue`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgpack

from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import GrantId, PipelineEpoch, WaveId
from wavepp.core.limits import FRAME_HEADER_BYTES_MAX
from wavepp.core.waves.types import FailedGrant, StepTime
from wavepp.core.wire import header_checks as checks
from wavepp.core.wire.header_checks import FLAG_DECODE, FLAG_LAST, FLAG_SNAPSHOT
from wavepp.core.wire.prologue import FrameError
from wavepp.core.wire.types import REASON_BYTES_MAX, FrameChunk, TensorSpec

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Everything of a wave but the tensors' bytes.

    Grants are unique within each of `chunks`, `failed` and `ended`, and none both runs and ends. `issued_ns`:
    the router's wall clock when it issued the wave. `steps`: of the stages that it has passed.
    """

    epoch: PipelineEpoch
    wave: WaveId
    chunks: tuple[FrameChunk, ...]
    failed: tuple[FailedGrant, ...] = ()
    ended: tuple[GrantId, ...] = ()
    tensors: tuple[TensorSpec, ...] = ()
    steps: tuple[StepTime, ...] = ()
    issued_ns: int = 0

    @property
    def payload_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def encode(self) -> bytes:
        """The header's bytes. The receiver verifies it; here only its size is, and reasons are cut."""
        packed: bytes = msgpack.packb(
            (
                self.epoch,
                self.wave,
                self.issued_ns,
                [
                    (
                        chunk.grant,
                        chunk.start,
                        chunk.length,
                        (FLAG_LAST if chunk.last else 0)
                        | (FLAG_SNAPSHOT if chunk.snapshot else 0)
                        | (FLAG_DECODE if chunk.decode else 0),
                        chunk.keys,
                    )
                    for chunk in self.chunks
                ],
                [(failed.grant, failed.stage, _cut(failed.reason)) for failed in self.failed],
                self.ended,
                [(tensor.name, tensor.dtype, tensor.shape) for tensor in self.tensors],
                [(step.stage, step.start_ns, step.duration_ns, step.queued_ns, step.tokens) for step in self.steps],
            )
        )
        if len(packed) > FRAME_HEADER_BYTES_MAX:
            raise InvalidInputError(
                f"header of {len(packed)} bytes, at most {FRAME_HEADER_BYTES_MAX}: put fewer chunks in a wave"
            )
        return packed

    @classmethod
    def decode(cls, data: Buffer, payload_bytes: int) -> FrameHeader:
        """Verify and read a header whose prologue announced `payload_bytes`; `FrameError` when it is wrong."""
        fields = checks.read_row(checks.unpack(data), 8, "header")
        header = cls(
            epoch=PipelineEpoch(checks.read_count(fields[0], "epoch")),
            wave=WaveId(checks.read_count(fields[1], "wave")),
            issued_ns=checks.read_count(fields[2], "issue time"),
            chunks=checks.read_chunks(fields[3]),
            failed=checks.read_failed(fields[4]),
            ended=checks.read_ended(fields[5]),
            tensors=checks.read_tensors(fields[6]),
            steps=checks.read_steps(fields[7]),
        )
        if header.ended:
            both = {chunk.grant for chunk in header.chunks}.intersection(header.ended)
            if both:
                raise FrameError(f"grant {min(both)} both runs and ends in wave {header.wave}")
        if header.payload_bytes != payload_bytes:
            raise FrameError(f"tensors take {header.payload_bytes} bytes, the payload has {payload_bytes}")
        return header


def _cut(reason: str) -> str:
    return reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")
