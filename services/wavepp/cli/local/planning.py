"""From the options of `wavepp up` to what has to be started."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from wavepp.cli.local.cluster import ClusterSpec
from wavepp.cli.local.options import To, UpOptions, flags
from wavepp.cli.local.sizing import Pool, available_memory, default_wave_tokens, emulated_pool, pool_for
from wavepp.cli.models.fetch import SMOLLM2, FetchError, fetch_model
from wavepp.core.errors import InvalidInputError, WaveppError
from wavepp.profiles.profile import EMULATED, is_emulated

BLOCK_TOKENS: Final = 64
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class PortTakenError(WaveppError):
    """Somebody else listens there."""


@dataclass(frozen=True, slots=True)
class UpPlan:
    """`pool` is None when the number of blocks was given or comes from a configuration file."""

    spec: ClusterSpec
    pool: Pool | None
    chat: bool


def plan_up(options: UpOptions, on_step: Callable[[str], None] = lambda _: None) -> UpPlan:
    """Find (or fetch) the model, size what was left open. Raises WaveppError when the model cannot be had."""
    if options.stages < 1:
        raise InvalidInputError(f"--stages is {options.stages}; it must be 1 or more")
    directory = None if is_emulated(options.model) else find_model(options.model, options.models_dir, on_step)
    block_tokens = options.block_tokens or BLOCK_TOKENS
    blocks, wave_tokens_max, pool = options.blocks, options.wave_tokens_max, None
    # A configuration file speaks for itself: defaults of ours would override it.
    if blocks is None and options.config is None:
        if directory is None:
            pool = emulated_pool(block_tokens)
        else:
            pool = pool_for(directory, options.dtype or "auto", block_tokens, available_memory())
        blocks = pool.blocks
    if wave_tokens_max is None and options.config is None:
        wave_tokens_max = default_wave_tokens(block_tokens)
    spec = ClusterSpec(
        run_dir=options.run_dir,
        model=options.model if directory is None else str(directory),
        stages=options.stages,
        router_port=options.port,
        tokenizer=directory if directory is not None and (directory / "tokenizer.json").is_file() else None,
        etcd_endpoints=options.etcd_endpoints,
        common_arguments=flags(options, To.ALL),
        stage_arguments=flags(replace(options, blocks=blocks, wave_tokens_max=wave_tokens_max), To.STAGES),
        router_arguments=flags(options, To.ROUTER),
    )
    return UpPlan(spec, pool, directory is not None and _has_chat_template(directory))


def find_model(model: str, models_dir: Path, on_step: Callable[[str], None]) -> Path:
    """The directory of a checkpoint: a path, or a name that `wavepp model fetch` knows, fetched when it is not there.

    Raises FetchError.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if model != SMOLLM2 and not _HUB_ID.fullmatch(model):
        raise FetchError(
            f"no model {model!r}: there is no such directory; give one with a Hugging Face checkpoint, a hub id like "
            f"owner/name, {SMOLLM2}, or {EMULATED}"
        )
    try:
        return fetch_model(model, models_dir, on_step)
    except FetchError as error:
        raise FetchError(f"no model {model!r}: there is no such directory, and {error}") from error


def check_port(port: int) -> None:
    """Raises PortTakenError when nobody can listen on `port` of 127.0.0.1. 0 is always well."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except OSError as error:
        raise PortTakenError(
            f"cannot listen on 127.0.0.1:{port}: {error.strerror}; stop what listens there, or give another --port "
            "(0 takes a free one)"
        ) from error


def _has_chat_template(directory: Path) -> bool:
    if (directory / "chat_template.jinja").is_file():
        return True
    try:
        return '"chat_template"' in (directory / "tokenizer_config.json").read_text()
    except OSError:
        return False
