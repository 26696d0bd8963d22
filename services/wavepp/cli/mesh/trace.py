"""`wavepp trace`: the last waves as a timeline file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from wavepp.cli.mesh.address import RUN_DIR, AddressOption, RunDirOption, find_address
from wavepp.cli.terminal import errors_as_lines, stdout
from wavepp.core.errors import WaveppError
from wavepp.v1 import prefill_pb2


def trace(
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write (JSON).")],
    waves: Annotated[int, typer.Option(min=0, help="Only the last so many waves; 0 = all that are kept.")] = 0,
    address: AddressOption = None,
    run_dir: RunDirOption = RUN_DIR,
) -> None:
    """Write a timeline of waves over stages, to be opened in https://ui.perfetto.dev or chrome://tracing."""
    from wavepp.cli.mesh.client import MeshClient

    with errors_as_lines("trace"):
        with MeshClient(find_address(address, run_dir)) as client:
            count = write_timeline(client.timeline(waves), client.status(), out)
        stdout().print(f"{count} waves in {out} (open it in https://ui.perfetto.dev)", soft_wrap=True)


def write_timeline(timeline: prefill_pb2.GetTimelineResponse, status: prefill_pb2.GetStatusResponse, out: Path) -> int:
    """Write the file; how many waves it has. Raises WaveppError when the file cannot be written."""
    from wavepp.cli.mesh.chrome_trace import chrome_trace

    layers = {stage.stage: (stage.first_layer, stage.last_layer) for stage in status.stages}
    document = chrome_trace(timeline.waves, layers, status.pipeline)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, separators=(",", ":")) + "\n")
    except OSError as error:
        raise WaveppError(f"cannot write {out}: {error.strerror}") from error
    return len(timeline.waves)
