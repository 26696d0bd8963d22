"""Structured logs on the standard library: one JSON object a line, and no user's text in any of them."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

LogFormat = Literal["json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]

FIELD_CHARS_MAX: Final = 2048
MESSAGE_CHARS_MAX: Final = 8192
TRACEBACK_CHARS_MAX: Final = 32768
REDACTED: Final = "[redacted]"
FORBIDDEN_FIELDS: Final = frozenset(
    {"text", "prompt", "salt", "cache_salt", "tokens", "token_ids", "prompt_token_ids", "input_ids", "output_ids"}
)
"""What users send, or what keeps them apart. A count has another name (`prompt_tokens`)."""

_OWN = frozenset(
    [*logging.LogRecord("", 0, "", 0, "", (), None).__dict__, "message", "asctime", "taskName", "color_message"]
)


def setup_logging(level: LogLevel, log_format: LogFormat, stream: TextIO | None = None) -> None:
    """Send the root logger's records to `stream` (stderr when None) in `log_format`, and nowhere else.

    Extra fields are given as `log.info("...", extra={"request_id": ..., "wave": ..., "trace_id": ...})`.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else ConsoleFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)


class JsonFormatter(logging.Formatter):
    """`{"ts", "level", "logger", "msg", <extra fields>, "exc"}` on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        entry: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": _cut(record.getMessage(), MESSAGE_CHARS_MAX),
        }
        for name, value in extra_fields(record).items():
            entry.setdefault(name, value)
        if record.exc_info:
            entry["exc"] = self.formatException(record.exc_info)[-TRACEBACK_CHARS_MAX:]
        return json.dumps(entry, default=_plain, ensure_ascii=False)


class ConsoleFormatter(logging.Formatter):
    """For people: time, level, logger, message, `field=value`; a traceback on the lines below."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line, with its traceback if it has one."""
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        fields = "".join(f" {name}={_plain(value)}" for name, value in extra_fields(record).items())
        message = _cut(record.getMessage(), MESSAGE_CHARS_MAX)
        line = f"{moment} {record.levelname:<8} {record.name}: {message}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)[-TRACEBACK_CHARS_MAX:]
        return line


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields given as `extra`, with what users sent replaced, whatever its type."""
    return {
        name: REDACTED if name.lower() in FORBIDDEN_FIELDS else _clean(value)
        for name, value in record.__dict__.items()
        if name not in _OWN
    }


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            str(name): REDACTED if str(name).lower() in FORBIDDEN_FIELDS else _clean(inner)
            for name, inner in value.items()
        }
    if value is None or isinstance(value, bool | int | float):
        return value
    return _plain(value)


def _plain(value: object) -> str:
    return _cut(value if isinstance(value, str) else repr(value), FIELD_CHARS_MAX)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
