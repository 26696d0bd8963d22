"""Flat views of payloads, as both transports need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wavepp.core.errors import InvalidInputError

if TYPE_CHECKING:
    from typing_extensions import Buffer


def flat_views(payload: Sequence[Buffer]) -> tuple[memoryview, ...]:
    """One-dimensional byte views of the buffers that are not empty. Raises InvalidInputError.

    No copy is made. A buffer that is not C-contiguous is the caller's mistake: copying it here would hide a
    cost that belongs to whoever made it so.
    """
    views = []
    for number, buffer in enumerate(payload):
        view = memoryview(buffer)
        if not view.c_contiguous:
            raise InvalidInputError(f"payload buffer {number} is not C-contiguous; copy it before sending")
        if view.nbytes:
            views.append(view.cast("B"))
    return tuple(views)


def writable_view(buffer: Buffer, nbytes: int) -> memoryview:
    """A flat view to receive into. Raises InvalidInputError unless it is writable and exactly `nbytes` long."""
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous or view.nbytes != nbytes:
        raise InvalidInputError(
            f"allocate() must return a writable C-contiguous buffer of {nbytes} bytes; it returned "
            f"{view.nbytes} bytes, readonly={view.readonly}, contiguous={view.c_contiguous}"
        )
    return view.cast("B")
