"""Options of a command written once: as the fields of a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

Options = TypeVar("Options")


def command_of(options_class: type[Options], run: Callable[[Options], None]) -> Callable[..., None]:
    """A function for typer whose options are the fields of a dataclass, `Annotated` with `typer.Option`.

    It has the help text of `run`, which gets the options.
    """
    hints = get_type_hints(options_class, include_extras=True)

    def command(**values: Any) -> None:
        run(options_class(**values))

    parameters = []
    for field in fields(options_class):  # type: ignore[arg-type]
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(field.name, kind, default=default, annotation=hints[field.name]))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = dict(hints)
    command.__doc__ = run.__doc__
    return command
