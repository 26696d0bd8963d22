"""Answers that nobody reads."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from google.protobuf.message import Message

from wavepp.router.errors import UnreadError

READ_WITHIN_S: Final = 30.0
"""A client's connection takes 64 KiB or more ahead of what is read: a thousand tokens."""


async def write_in_time(context: Any, message: Message) -> None:
    """Send one message of a stream. Raises UnreadError, which ends the stream, when the client does not take it.

    Else a request that has ended would stay for as long as its client does not read the rest. gRPC's own record of the
    call does stay, behind what is unread, until the client reads on or goes.
    """
    try:
        async with asyncio.timeout(READ_WITHIN_S):
            await context.write(message)
    except TimeoutError:
        raise UnreadError(
            f"nothing of the answer was read for {READ_WITHIN_S:.0f} s; read it as it comes, or ask for it without "
            "a stream"
        ) from None
