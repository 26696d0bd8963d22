"""The first message on a link, in both directions: who this is, and whom it takes the other for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgpack

from wavepp.core.errors import PeerProtocolError
from wavepp.core.ids import Incarnation, PipelineEpoch, StageIndex
from wavepp.core.limits import NAME_BYTES_MAX, STAGES_MAX

HELLO_BYTES_MAX: Final = 1024
"""Four names of at most NAME_BYTES_MAX and three numbers fit with room to spare."""

_EPOCH_MAX: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Hello:
    """Who speaks (`from_`) and who is meant (`to_`), in which epoch of which pipeline."""

    cluster: str
    pipeline: str
    from_stage: StageIndex
    to_stage: StageIndex
    from_incarnation: Incarnation
    to_incarnation: Incarnation
    epoch: PipelineEpoch

    def mirrored(self) -> Hello:
        """The hello that the other end must answer with."""
        return Hello(
            cluster=self.cluster,
            pipeline=self.pipeline,
            from_stage=self.to_stage,
            to_stage=self.from_stage,
            from_incarnation=self.to_incarnation,
            to_incarnation=self.from_incarnation,
            epoch=self.epoch,
        )


def encode_hello(hello: Hello) -> bytes:
    """At most HELLO_BYTES_MAX bytes of msgpack (a list, in the order of the fields)."""
    return bytes(
        msgpack.packb(
            [
                hello.cluster,
                hello.pipeline,
                hello.from_stage,
                hello.to_stage,
                hello.from_incarnation,
                hello.to_incarnation,
                hello.epoch,
            ]
        )
    )


def decode_hello(raw: bytes) -> Hello:
    """Raises PeerProtocolError when `raw` is not a hello inside the bounds."""
    if len(raw) > HELLO_BYTES_MAX:
        raise PeerProtocolError(f"hello of {len(raw)} bytes, at most {HELLO_BYTES_MAX}")
    try:
        fields = msgpack.unpackb(raw, max_str_len=NAME_BYTES_MAX, max_array_len=7)
    except (ValueError, msgpack.UnpackException) as error:
        raise PeerProtocolError(f"hello is not msgpack inside the bounds: {error}") from error
    if not isinstance(fields, list) or len(fields) != 7:
        raise PeerProtocolError("hello is not a list of seven fields")
    cluster, pipeline, from_stage, to_stage, from_incarnation, to_incarnation, epoch = fields
    for name in (cluster, pipeline, from_incarnation, to_incarnation):
        if not isinstance(name, str):
            raise PeerProtocolError(f"hello: {name!r} is not a name")
    for number, limit in ((from_stage, STAGES_MAX), (to_stage, STAGES_MAX), (epoch, _EPOCH_MAX)):
        if type(number) is not int or not 0 <= number < limit:
            raise PeerProtocolError(f"hello: {number!r} is not a number in [0, {limit})")
    return Hello(
        cluster=cluster,
        pipeline=pipeline,
        from_stage=StageIndex(from_stage),
        to_stage=StageIndex(to_stage),
        from_incarnation=Incarnation(from_incarnation),
        to_incarnation=Incarnation(to_incarnation),
        epoch=PipelineEpoch(epoch),
    )
