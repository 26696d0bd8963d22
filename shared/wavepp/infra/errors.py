"""Errors of a process as a whole."""

from __future__ import annotations

from wavepp.core.errors import WaveppError


class StartupError(WaveppError):
    """The process cannot start with what it was given. Its text is one line, and all that the user sees."""


class ConfigError(StartupError):
    """A setting is missing, unknown or out of its range."""


class BackgroundTaskError(WaveppError):
    """A task that the process cannot do without has ended. Its cause is the task's own error, if it had one."""
