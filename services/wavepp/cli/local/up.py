"""`wavepp up`: a whole mesh on this machine, supervised until it is to stop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from wavepp.cli.local.options import UpOptions
from wavepp.cli.mesh.address import RUN_DIR, forget_address, write_address
from wavepp.cli.terminal import errors_as_lines, stderr, stdout

if TYPE_CHECKING:
    from wavepp.cli.local.cluster import LocalCluster
    from wavepp.cli.local.planning import UpPlan
    from wavepp.cli.local.signals import StopSignals


def up(options: UpOptions) -> None:
    """Start etcd, a cache directory, a router and the stages; restart what dies; stop them all on Ctrl-C."""
    with errors_as_lines("up"):
        run_mesh(options)


def run_mesh(options: UpOptions) -> None:
    """Start the mesh and supervise it until a signal comes. Raises WaveppError when it cannot be started or kept up."""
    from wavepp.cli.local.cluster import LocalCluster
    from wavepp.cli.local.planning import check_port, plan_up
    from wavepp.cli.local.run_dir import own_run_dir
    from wavepp.cli.local.signals import StopRequestedError, StopSignals

    console = stdout()
    with own_run_dir(options.run_dir, lambda line: stderr().print(line)):
        check_port(options.port)
        # Before the signals are ours: a download ends at once on Ctrl-C.
        plan = plan_up(options, lambda step: stderr().print(step))
        with StopSignals() as signals:
            cluster = LocalCluster(plan.spec)
            signals.on_second = cluster.kill
            try:
                _start(cluster, plan, options, signals)
                cluster.supervise(signals.wait, lambda name: stderr().print(f"{name} died, starting it again"))
            except StopRequestedError:
                pass
            finally:
                forget_address(options.run_dir)
                if signals.requested:
                    console.print("stopping (again Ctrl-C: at once)")
                cluster.stop()
        console.print("stopped")


def _start(cluster: LocalCluster, plan: UpPlan, options: UpOptions, signals: StopSignals) -> None:
    from wavepp.cli.mesh.client import MeshClient

    console = stdout()
    pool = f"{plan.pool.blocks} blocks a stage ({plan.pool.reason})" if plan.pool else "blocks as configured"
    console.print(
        f"starting {options.stages} stages of {options.model}, {pool}; logs in {options.run_dir}", soft_wrap=True
    )
    began = time.monotonic()
    with console.status("starting etcd") as shown:
        cluster.start()

        def on_wait() -> None:
            signals.check()
            shown.update(f"waiting for {options.stages} stages to load ({time.monotonic() - began:.0f} s)")

        cluster.wait_ready(options.ready_timeout, on_wait)
    with MeshClient(cluster.address) as client:
        info, status = client.model_info(), client.status()
    write_address(options.run_dir, cluster.address)
    layers = ", ".join(f"stage {s.stage}: [{s.first_layer}, {s.last_layer})" for s in status.stages)
    console.print(
        f"ready at {cluster.address} after {time.monotonic() - began:.1f} s: {info.model}, {info.dtype}, {info.layers} "
        f"layers ({layers})",
        soft_wrap=True,
        style="bold green",
    )
    for line in next_commands(options.run_dir, text=info.has_tokenizer, chat=plan.chat):
        console.print(f"  {line}", soft_wrap=True)
    console.print("Ctrl-C stops it", soft_wrap=True)


def next_commands(run_dir: Path, *, text: bool, chat: bool) -> list[str]:
    """What a user may want to type now."""
    where = "" if run_dir == RUN_DIR else f" --run-dir {run_dir}"
    prompt = "--text 'What is the capital of France?'" + (" --chat" if chat else "") if text else "--tokens 1,2,3"
    return [
        f"wavepp prefill{where} {prompt} --max-tokens 16",
        f"wavepp status{where}",
        f"wavepp trace{where} --out timeline.json",
    ]
