"""What a transport has open: its listeners, and the sessions of all links that it made or accepted."""

from __future__ import annotations

import weakref

from wavepp.stage.links.base import LinkListener, LinkOptions
from wavepp.stage.links.errors import LinkConnectError
from wavepp.stage.links.session import LinkSession


class OpenLinks:
    """Finds them all again when the transport closes."""

    def __init__(self, options: LinkOptions) -> None:
        self.options = options
        self._closed = False
        self._listeners: list[LinkListener] = []
        self._sessions: weakref.WeakSet[LinkSession] = weakref.WeakSet()

    def add_listener(self, listener: LinkListener) -> None:
        """To be closed with the rest."""
        self._listeners.append(listener)

    def require_open(self) -> None:
        """Raises LinkConnectError once closed. For who connects: a listener's callback has nobody to raise to."""
        if self._closed:
            raise LinkConnectError("this transport is closed")

    def new_session(self) -> LinkSession:
        """A session that `close` will find."""
        session = LinkSession(self.options)
        self._sessions.add(session)
        return session

    async def close(self) -> None:
        """Close the listeners and abort the links that are left. Idempotent."""
        self._closed = True
        for listener in self._listeners:
            await listener.close()
        for session in list(self._sessions):
            session.abort("the transport was closed")
            await session.torn_down()
