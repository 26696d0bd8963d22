"""`wavepp health`: one question to a process' health service, for probes of containers and for scripts."""

from __future__ import annotations

from typing import Annotated

import typer

from wavepp.cli.terminal import errors_as_lines, fail


def health(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Of any process of a mesh.")],
    live: Annotated[bool, typer.Option("--live", help="Ask whether it is alive, not whether it is ready.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, max=600.0, help="Seconds to wait for the answer.")] = 3.0,
) -> None:
    """Ask a process whether it is ready (exit code 0) or not, or gives no answer (1)."""
    from wavepp.cli.mesh.client import MeshClient
    from wavepp.infra.rpc import LIVENESS

    with errors_as_lines("health"), MeshClient(address) as client:
        status = client.health(LIVENESS if live else "", timeout)
    if status != "SERVING":
        fail("health", f"{address} says {status}")
    print(status)
