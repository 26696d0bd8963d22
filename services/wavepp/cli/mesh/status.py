"""`wavepp status`: what every process of the mesh holds and does."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from wavepp.cli.mesh.address import RUN_DIR, AddressOption, RunDirOption, find_address
from wavepp.cli.terminal import errors_as_lines, stdout


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch one line each.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, max=3600.0, help="Seconds between looks with --watch.")] = 1.0,
    address: AddressOption = None,
    run_dir: RunDirOption = RUN_DIR,
) -> None:
    """Show processes, incarnations, layers, pools, leases, hints, waves in flight and the queue."""
    from rich.live import Live

    from wavepp.cli.mesh.client import MeshClient
    from wavepp.cli.mesh.plain import to_plain
    from wavepp.cli.mesh.status_view import status_view

    console = stdout()
    with errors_as_lines("status"), MeshClient(find_address(address, run_dir)) as client:
        found = client.status()
        if not watch:
            if as_json:
                print(json.dumps(to_plain(found), indent=2))
            else:
                console.print(status_view(found))
            return
        try:
            if as_json:
                while True:
                    print(json.dumps(to_plain(found)), flush=True)
                    time.sleep(interval)
                    found = client.status()
            with Live(status_view(found), console=console, auto_refresh=False) as live:
                while True:
                    time.sleep(interval)
                    live.update(status_view(client.status()), refresh=True)
        except KeyboardInterrupt:
            return
