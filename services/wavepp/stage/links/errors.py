"""What can go wrong on a link, as types. Every message says what happened and what to do."""

from __future__ import annotations

from enum import StrEnum

from wavepp.core.errors import WaveppError


class LossReason(StrEnum):
    """Why a link is dead. For logs, metrics and the report that moves the pipeline epoch."""

    CLOSED = "closed"
    """This side called `close`."""
    CLOSED_BY_PEER = "closed_by_peer"
    """The other side said goodbye; the detail is what it said."""
    RESET = "reset"
    """The transport says that the connection is gone (the peer died, a cable was pulled)."""
    SILENT = "silent"
    """Nothing was heard for `silence_s`, though the connection looks alive."""
    PROTOCOL = "protocol"
    """The peer sent something that is outside the protocol."""
    SEND_ABANDONED = "send_abandoned"
    """A send was cancelled after a part of its frame had left: the stream cannot go on after that."""
    FAULT = "fault"
    """A fault on this side (an allocation hook that raised, a buffer of the wrong size)."""
    CUT = "cut"
    """`abort` was called: torn down without a goodbye."""


class LinkError(WaveppError):
    """Base of the errors of links."""


class LinkLostError(LinkError):
    """The link is dead and stays dead. What was not received is gone; start over in a new epoch."""

    def __init__(self, reason: LossReason, detail: str) -> None:
        super().__init__(f"link lost ({reason.value}): {detail}")
        self.reason = reason
        self.detail = detail


class LinkConnectError(LinkError):
    """No link came to be: nobody listens there, or whoever does gave no proper answer in time."""


class HelloRefusedError(LinkError):
    """The two ends do not belong together: another pipeline, stage, incarnation or epoch.

    Raised on both sides; the refusing side's words travel to the other.
    """


class TransportUnavailableError(LinkError):
    """The library behind a transport cannot be loaded here."""
