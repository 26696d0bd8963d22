"""Write docs/configuration.md from the configuration classes; with --check, say whether it is current."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from wavepp.directory.config import DirectoryConfig
from wavepp.infra.config import ENV_PREFIX, Config
from wavepp.infra.config_fields import CommonFields
from wavepp.router.config import RouterConfig
from wavepp.stage.config import StageConfig

TARGET = Path(__file__).with_name("configuration.md")
META = {"config", "print_config"}
INTRO = f"""# Configuration

Generated from the code by `python docs/generate_configuration.py`; do not edit.

Every setting is a flag (`--lease-ttl-s 10`), an environment variable (`{ENV_PREFIX}LEASE_TTL_S=10`) and a key of a TOML
file given with `--config` (`lease_ttl_s = 10`; the tables `[router]`, `[directory]` and `[stage]` hold what is for
one kind of process). Flags go over the environment, the environment over the file. `--print-config` prints what is
in effect in the form of such a file. Lists are written `a,b,c`.

Tracing also follows the standard variables of OpenTelemetry: it is on when `OTEL_EXPORTER_OTLP_ENDPOINT` is set.
"""


def default_text(field: FieldInfo) -> str:
    """A field's default as it would be given."""
    if field.is_required():
        return "**required**"
    value: Any = field.default
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(str(v) for v in value)}`"
    return f"`{value}`"


def table(fields: dict[str, FieldInfo]) -> str:
    """A table of settings."""
    rows = [f"| `{name}` | {default_text(field)} | {field.description} |" for name, field in fields.items()]
    return "\n".join(["| setting | default | what |", "|---|---|---|", *rows]) + "\n"


def own_fields(config: type[Config]) -> dict[str, FieldInfo]:
    """The settings that only this process has."""
    shared = CommonFields.model_fields.keys() | META
    return {name: field for name, field in config.model_fields.items() if name not in shared}


def page() -> str:
    """The whole page."""
    parts = [INTRO, "## All processes\n", table(CommonFields.model_fields)]
    for title, config in (
        ("Router (`python -m wavepp.router`)", RouterConfig),
        ("Cache directory (`python -m wavepp.directory`)", DirectoryConfig),
        ("Stage (`python -m wavepp.stage`)", StageConfig),
    ):
        parts += [f"## {title}\n", table(own_fields(config))]
    return "\n".join(parts)


def main() -> None:
    """Write the page, or compare it."""
    if "--check" in sys.argv[1:]:
        if not TARGET.exists() or TARGET.read_text() != page():
            sys.exit("docs/configuration.md is not current; run python docs/generate_configuration.py and commit")
        return
    TARGET.write_text(page())


if __name__ == "__main__":
    main()
