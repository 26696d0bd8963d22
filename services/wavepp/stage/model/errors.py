"""What can be wrong with a model that somebody asks a stage to serve. The message is the user's one clear line."""

from __future__ import annotations

from wavepp.core.errors import InvalidInputError


class ModelError(InvalidInputError):
    """The model cannot be served as asked."""


class ModelNotFoundError(ModelError):
    """There is no such checkpoint here."""


class UnsupportedModelError(ModelError):
    """The checkpoint is of a kind, or uses an option, that no adapter supports."""


class CheckpointError(ModelError):
    """The checkpoint is damaged or incomplete."""
