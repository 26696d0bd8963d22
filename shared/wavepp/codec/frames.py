"""Frames, between a stage and the next: a wave's header and its tensors, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavepp.core.stage import events as stage_ev
from wavepp.core.wire.types import Buffer, NamedTensor
from wavepp.core.wire.wave_header import FrameHeader


@dataclass(frozen=True, slots=True)
class WavePayload:
    """What came with a wave: token bytes on stage 0, tensors elsewhere. `arrived_ns`: wall clock."""

    arrived_ns: int
    tokens: bytes | None
    tensors: tuple[NamedTensor, ...]


def encode_frame(wave: stage_ev.SendWave) -> tuple[FrameHeader, Sequence[Buffer]]:
    """The header and the payload's buffers for the next stage; what a job gave out is its tensors."""
    tensors: tuple[NamedTensor, ...] = wave.output if isinstance(wave.output, tuple) else ()
    header = FrameHeader(
        epoch=wave.epoch,
        wave=wave.wave,
        chunks=wave.chunks,
        failed=wave.failed,
        ended=wave.ended,
        tensors=tuple(spec for spec, _ in tensors),
        steps=wave.steps,
        issued_ns=wave.issued_ns,
    )
    return header, [buffer for _, buffer in tensors]


def decode_frame(header: FrameHeader, payload: memoryview, arrived_ns: int) -> stage_ev.WaveArrived:
    """See `encode_frame`. `header` is verified and `payload` has its size."""
    tensors: list[NamedTensor] = []
    at = 0
    for spec in header.tensors:
        tensors.append((spec, payload[at : at + spec.nbytes]))
        at += spec.nbytes
    return stage_ev.WaveArrived(
        epoch=header.epoch,
        wave=header.wave,
        chunks=header.chunks,
        failed=header.failed,
        ended=header.ended,
        steps=header.steps,
        issued_ns=header.issued_ns,
        payload=WavePayload(arrived_ns, None, tuple(tensors)),
    )
