"""Whether the two ends of a link belong together."""

from __future__ import annotations

from collections.abc import Callable

from wavepp.core.wire.hello import Hello
from wavepp.stage.links.errors import HelloRefusedError

HelloCheck = Callable[[Hello], Hello]
"""Given the hello of whoever connected: the own hello to answer with, or HelloRefusedError.

It is called from the event loop and must not block. The answer is sent as it is, and the connecting side
refuses one that does not mirror its own hello.
"""


def require_mirror(own: Hello, peer: Hello) -> None:
    """Raise HelloRefusedError, naming the fields that differ, unless `peer` mirrors `own`."""
    wanted = own.mirrored()
    if peer == wanted:
        return
    wrong = [
        f"{name} is {getattr(peer, name)!r}, expected {getattr(wanted, name)!r}"
        for name in Hello.__dataclass_fields__
        if getattr(peer, name) != getattr(wanted, name)
    ]
    raise HelloRefusedError("hello does not fit: " + "; ".join(wrong))
