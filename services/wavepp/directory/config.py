"""Settings of a cache directory."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from wavepp.infra.config import ProcessConfig


class DirectoryConfig(ProcessConfig):
    """What `python -m wavepp.directory` takes."""

    section: ClassVar[str] = "directory"

    stage_connect_timeout_s: float = Field(
        3.0, ge=0.1, le=60.0, description="Time that a stage has to answer the first message of its stream."
    )
    round_timeout_s: float = Field(
        5.0,
        ge=0.1,
        le=60.0,
        description="Time that the stages have to answer an admission round; the streams of those that do not are made "
        "again.",
    )
