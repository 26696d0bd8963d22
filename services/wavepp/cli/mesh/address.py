"""Where a running mesh is: `wavepp up` writes it into its run directory, the other commands read it there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from wavepp.core.errors import WaveppError

RUN_DIR: Final = Path(".wavepp/run")
PORT: Final = 8470

AddressOption = Annotated[
    str | None,
    typer.Option("--address", envvar="WAVEPP_ADDRESS", help="host:port of the mesh; what `wavepp up` wrote if absent."),
]
RunDirOption = Annotated[Path, typer.Option("--run-dir", help="Run directory of the `wavepp up` to talk to.")]


class NoAddressError(WaveppError):
    """No mesh is known."""


def find_address(address: str | None, run_dir: Path) -> str:
    """`address` if it is given, else that of the mesh of `run_dir`. Raises NoAddressError."""
    if address:
        return address
    try:
        found = (run_dir / "address").read_text().strip()
    except OSError:
        found = ""
    if not found:
        raise NoAddressError(f"no mesh runs in {run_dir}: start one with `wavepp up`, or give --address host:port")
    return found


def write_address(run_dir: Path, address: str) -> None:
    """Appears whole or not at all."""
    new = run_dir / "address.new"
    new.write_text(f"{address}\n")
    new.rename(run_dir / "address")


def forget_address(run_dir: Path) -> None:
    """The mesh stops."""
    (run_dir / "address").unlink(missing_ok=True)
