"""What all commands say in the same way: results on stdout, everything else on stderr, an error as one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import typer
from rich.console import Console

from wavepp.core.errors import WaveppError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
PLAIN_WIDTH: Final = 180
"""Of tables that do not go to a terminal (rich would take 80 columns)."""


def stdout() -> Console:
    """For results. Text is printed as it is: no markup, no highlighting."""
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(markup=False, highlight=False, emoji=False, width=width)


def stderr() -> Console:
    """For progress and remarks."""
    width = None if sys.stderr.isatty() else PLAIN_WIDTH
    return Console(stderr=True, markup=False, highlight=False, emoji=False, width=width)


def fail(command: str, message: str, code: int = EXIT_FAILED, program: str = "wavepp") -> NoReturn:
    """One line on stderr, then the end of the command with exit code `code`."""
    print(f"{program} {command}: {' '.join(message.split())}", file=sys.stderr)
    raise typer.Exit(code)


@contextmanager
def errors_as_lines(command: str, program: str = "wavepp") -> Iterator[None]:
    """Our own errors inside end the command with one line; Ctrl-C ends it without a word more than needed."""
    try:
        yield
    except WaveppError as error:
        fail(command, str(error), program=program)
    except KeyboardInterrupt:
        fail(command, "interrupted", EXIT_INTERRUPTED, program)
