"""Transports by name. A transport's library is imported when the transport is made, not before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from wavepp.core.errors import InvalidInputError
from wavepp.stage.links.base import LinkOptions, Transport

if TYPE_CHECKING:
    from wavepp.stage.links.ucx_driver import UcxProfile

TransportKind = Literal["ucx", "socket"]


def make_transport(
    kind: TransportKind, options: LinkOptions, *, ucx_profile: UcxProfile = "tcp", ucx_devices: Sequence[str] = ()
) -> Transport:
    """A transport for the running event loop; close it before the loop ends.

    `ucx_profile` "shm" uses shared memory between processes of one machine; both ends must choose it. UCX listens on
    and connects from addresses of `ucx_devices` only, where these are given.
    Raises TransportUnavailableError when ucxx is not installed, InvalidInputError for an unknown kind.
    """
    match kind:
        case "socket":
            from wavepp.stage.links.socket import SocketTransport

            return SocketTransport(options)
        case "ucx":
            from wavepp.stage.links.ucx import UcxTransport

            return UcxTransport(options, ucx_profile, ucx_devices)
    raise InvalidInputError(f"link kind {kind!r} is unknown; known: {', '.join(get_args(TransportKind))}")
