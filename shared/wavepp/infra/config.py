"""Typed configuration of every process: flags over environment over file over defaults, checked before anything starts.

No other module reads the environment (but for OpenTelemetry's own variables, see `telemetry`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from wavepp.infra.config_fields import CommonFields
from wavepp.infra.errors import ConfigError
from wavepp.infra.logs import LogFormat, setup_logging

C = TypeVar("C", bound="Config")
_log = logging.getLogger(__name__)

ENV_PREFIX: Final = "WAVEPP_"
SECTIONS: Final = ("router", "directory", "stage")
EXIT_USAGE: Final = 2
FILE_BYTES_MAX: Final = 1024 * 1024
STOP_GRACE_S: Final = 30.0
_META_FIELDS: Final = frozenset({"config", "print_config"})


class Config(BaseSettings):
    """Base of a process' configuration. A field `lease_ttl_s` is the flag `--lease-ttl-s`, the variable
    `WAVEPP_LEASE_TTL_S` and the key `lease_ttl_s` of the file; a list is written a,b,c in a flag or variable.

    The file is TOML. Its table `[<section>]` holds what is for one kind of process only, so that one file serves all.
    An object made directly, not by `load`, takes its arguments and the defaults and looks at nothing else.
    """

    section: ClassVar[str] = ""

    config: Path | None = Field(default=None, description="Read settings from this TOML file.")
    print_config: bool = Field(default=False, description="Print the settings in effect as TOML and exit.")

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", frozen=True, validate_default=True, protected_namespaces=()
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments only; `resolve` asks the other sources, and keeps them apart to say where a bad value came from."""
        return (init_settings,)


class ProcessConfig(CommonFields, Config):
    """Base of a service's configuration: `Config` with all groups that services share."""

    @property
    def stop_grace_s(self) -> float:
        """Time that the process has to end by itself once it is told to."""
        return STOP_GRACE_S


class DrainingConfig(ProcessConfig):
    """Base of the configuration of services that let what runs end before they stop."""

    drain_s: float = Field(
        20.0, ge=0, le=3600, description="Time for what runs to end when the process is to stop; then it is cut off."
    )

    @property
    def stop_grace_s(self) -> float:
        """With what a drain may take."""
        return super().stop_grace_s + self.drain_s


def load(config_class: type[C], argv: Sequence[str], *, name: str = "wavepp") -> C:
    """The configuration of this process, or its end: one log entry on stderr and exit code 2 for a bad value.

    `--help` and `--print-config` print to stdout and exit with code 0. `name` is the program's name in these texts.
    """
    try:
        config = resolve(config_class, argv, name=name)
    except ConfigError as error:
        setup_logging("info", _log_format(argv))
        _log.critical("%s: %s", name, error)
        sys.exit(EXIT_USAGE)
    if config.print_config:
        sys.stdout.write(as_toml(config))
        sys.exit(0)
    return config


def _log_format(argv: Sequence[str]) -> LogFormat:
    """The format of logs as far as it can be told of settings that are not valid: by its flag or variable."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--log-format")
    wanted = os.environ.get(f"{ENV_PREFIX}LOG_FORMAT")
    with contextlib.suppress(argparse.ArgumentError):
        wanted = parser.parse_known_args(list(argv))[0].log_format or wanted
    return "console" if wanted == "console" else "json"


def resolve(config_class: type[C], argv: Sequence[str], *, name: str = "wavepp") -> C:
    """Like `load`, but raises ConfigError, whose text is one line."""
    try:
        flags = CliSettingsSource[Any](
            config_class,
            cli_prog_name=name,
            cli_parse_args=list(argv),
            cli_kebab_case=True,
            cli_implicit_flags=True,
            cli_exit_on_error=False,
            cli_hide_none_type=True,
            cli_avoid_json=True,
        )()
        environment = EnvSettingsSource(config_class)()
    except SettingsError as error:
        raise ConfigError(_one_line(str(error).removeprefix("error parsing CLI: "))) from error
    path = flags.get("config") or environment.get("config")
    file = _read_file(Path(str(path)), config_class) if path else {}
    sources = [("flag", flags), ("environment", environment), ("file", file)]
    merged: dict[str, Any] = {}
    for _, values in reversed(sources):
        merged.update(values)
    try:
        return config_class(**merged)
    except ValidationError as error:
        found = "; ".join(_explain(details, sources) for details in error.errors())
        raise ConfigError(_one_line(found)) from error


def as_toml(config: BaseModel) -> str:
    """The settings as TOML that `--config` reads back; a setting without a value is a comment."""
    lines = []
    for key, value in config.model_dump(mode="json", exclude=set(_META_FIELDS)).items():
        # JSON's strings, numbers, booleans and arrays are TOML's too.
        lines.append(f"# {key} =" if value is None else f"{key} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _read_file(path: Path, config_class: type[Config]) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"the configuration file {path} has more than {FILE_BYTES_MAX} bytes")
    try:
        document = tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(_one_line(f"the configuration file {path} is no TOML: {error}")) from error
    own = document.get(config_class.section, {}) if config_class.section else {}
    if not isinstance(own, dict):
        raise ConfigError(f"{config_class.section} in {path} must be a table, [{config_class.section}]")
    common = {key: value for key, value in document.items() if key not in SECTIONS}
    return {**common, **own}


def _explain(details: ErrorDetails, sources: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    message = details["msg"].removeprefix("Value error, ")
    if not details["loc"]:
        return message
    name = str(details["loc"][0])
    origin = next((origin for origin, values in sources if name in values), "default")
    spelt = {
        "flag": f"--{name.replace('_', '-')}",
        "environment": f"{ENV_PREFIX}{name.upper()}",
        "file": f"{name} in the configuration file",
    }.get(origin, name)
    if details["type"] == "extra_forbidden":
        return f"{spelt}: no such setting"
    if details["type"] == "missing":
        return f"--{name.replace('_', '-')} (or {ENV_PREFIX}{name.upper()}): required, but not given"
    return f"{spelt}: {message[:1].lower()}{message[1:]}, got {str(details['input'])[:80]!r}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
