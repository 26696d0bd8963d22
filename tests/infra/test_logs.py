"""Log lines: structure, and what must never be in them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from wavepp.infra import logs


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def entries(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.usefixtures("root_logger")
def test_json_is_one_object_a_line_with_the_extra_fields(stream: io.StringIO) -> None:
    logs.setup_logging("info", "json", stream)
    log = logging.getLogger("wavepp.test")
    log.debug("too small")
    log.warning("two\nlines %d", 7, extra={"request_id": "r1", "wave": 3, "trace_id": "ab", "key": b"\x00"})
    (entry,) = entries(stream)
    assert datetime.fromisoformat(entry.pop("ts")).tzinfo is not None
    assert entry == {
        "level": "warning",
        "logger": "wavepp.test",
        "msg": "two\nlines 7",
        "request_id": "r1",
        "wave": 3,
        "trace_id": "ab",
        "key": repr(b"\x00"),
    }


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize("log_format", ["json", "console"])
def test_what_users_sent_never_reaches_a_line(stream: io.StringIO, log_format: logs.LogFormat) -> None:
    logs.setup_logging("info", log_format, stream)
    extra = dict.fromkeys(logs.FORBIDDEN_FIELDS, "SECRET")
    logging.getLogger("t").info("x", extra={**extra, "Prompt": ["SECRET"], "request": {"salt": "SECRET", "id": 1}})
    assert "SECRET" not in stream.getvalue()
    assert stream.getvalue().count(logs.REDACTED) == len(extra) + 2


@pytest.mark.usefixtures("root_logger")
def test_extra_fields_cannot_replace_the_lines_own(stream: io.StringIO) -> None:
    logs.setup_logging("info", "json", stream)
    logging.getLogger("t").info("real", extra={"level": "fake", "ts": 0, "logger": "fake"})
    (entry,) = entries(stream)
    assert (entry["level"], entry["logger"]) == ("info", "t")


@pytest.mark.usefixtures("root_logger")
def test_lines_are_bounded_and_carry_tracebacks(stream: io.StringIO) -> None:
    logs.setup_logging("info", "json", stream)
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("t").exception("m" * 100_000, extra={"field": "f" * 100_000})
    (entry,) = entries(stream)
    assert len(entry["msg"]) < logs.MESSAGE_CHARS_MAX + 50
    assert len(entry["field"]) < logs.FIELD_CHARS_MAX + 50
    assert "ValueError: boom" in entry["exc"]


@pytest.mark.usefixtures("root_logger")
def test_console_line_is_for_people(stream: io.StringIO) -> None:
    logs.setup_logging("debug", "console", stream)
    logging.getLogger("wavepp.x").debug("hello", extra={"wave": 4})
    assert stream.getvalue().endswith("DEBUG    wavepp.x: hello wave=4\n")
