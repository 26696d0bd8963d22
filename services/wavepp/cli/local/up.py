"""`wavepp up`: a whole mesh on this machine, supervised until it is told to stop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wavepp.cli.mesh.address import PORT, RUN_DIR, forget_address, write_address
from wavepp.cli.models.model import MODELS_DIR
from wavepp.cli.terminal import errors_as_lines, stderr, stdout
from wavepp.core.waves.policy_factory import PolicyName
from wavepp.infra.logs import LogFormat, LogLevel

if TYPE_CHECKING:
    from wavepp.cli.local.cluster import LocalCluster
    from wavepp.cli.local.options import UpOptions, UpPlan
    from wavepp.cli.local.signals import StopSignals


def up(
    model: Annotated[
        str, typer.Option(help="Checkpoint directory, hub id OWNER/NAME, smollm2, or emulated[:PROFILE].")
    ],
    stages: Annotated[int, typer.Option("--stages", "-n", min=1, max=64, help="Pipeline stages (processes).")] = 2,
    dtype: Annotated[Literal["auto", "bf16", "fp32"] | None, typer.Option(help="auto: bf16 if the CPU has it.")] = None,
    device: Annotated[str | None, typer.Option(help="Device of the stages.")] = None,
    blocks: Annotated[
        int | None,
        typer.Option(
            min=2,
            envvar="WAVEPP_BLOCKS",
            help="Cache blocks of each stage. If absent, all stages together get a quarter of the memory left beside "
            "the weights, at most 65,536 tokens or twice the model's longest sequence.",
        ),
    ] = None,
    block_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens a block (64).")] = None,
    wave_tokens_max: Annotated[
        int | None, typer.Option(min=1, envvar="WAVEPP_WAVE_TOKENS_MAX", help="Most prefill tokens of a wave, M (512).")
    ] = None,
    wave_requests_max: Annotated[int | None, typer.Option(min=1, max=512, help="Most requests of a wave.")] = None,
    policy: Annotated[PolicyName | None, typer.Option(help="How wave sizes are chosen.")] = None,
    chunk_grid: Annotated[
        Literal["free", "fixed"] | None, typer.Option(help="fixed: cut at multiples of M only, for reproducible bits.")
    ] = None,
    link: Annotated[Literal["ucx", "socket"] | None, typer.Option(help="What carries activations.")] = None,
    ucx_profile: Annotated[Literal["tcp", "shm"] | None, typer.Option(help="shm: shared memory.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each stage's model.")] = None,
    layers: Annotated[str | None, typer.Option(help="Layers of each stage, like 16,14; balanced if absent.")] = None,
    served_model_name: Annotated[str | None, typer.Option(help="Model name for clients.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="For clients, on 127.0.0.1; 0: any free one.")] = PORT,
    run_dir: Annotated[Path, typer.Option(help="Logs, etcd's data, and the address for the other commands.")] = RUN_DIR,
    models_dir: Annotated[Path, typer.Option(help="Where fetched models are.")] = MODELS_DIR,
    etcd_endpoints: Annotated[
        str, typer.Option(envvar="WAVEPP_ETCD_ENDPOINTS", help="host:port,... of your own etcd; none: one is started.")
    ] = "",
    cluster: Annotated[str | None, typer.Option(help="Name of the cluster, in your own etcd.")] = None,
    pipeline: Annotated[str | None, typer.Option(help="Name of the pipeline, in your own etcd.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="TOML settings of all processes."),
    ] = None,
    trace_file: Annotated[Path | None, typer.Option(help="Write request traces there, a JSON span a line.")] = None,
    log_level: Annotated[LogLevel | None, typer.Option(help="Of all processes.")] = None,
    log_format: Annotated[LogFormat | None, typer.Option(help="Of all processes.")] = None,
    ready_timeout: Annotated[float, typer.Option(min=1.0, help="Seconds until it must be ready.")] = 600.0,
) -> None:
    """Start etcd, a cache directory, a router and the stages; restart what dies; stop them all on Ctrl-C."""
    from wavepp.cli.local.options import UpOptions

    options = UpOptions(
        model=model,
        stages=stages,
        dtype=dtype,
        device=device,
        blocks=blocks,
        block_tokens=block_tokens,
        wave_tokens_max=wave_tokens_max,
        wave_requests_max=wave_requests_max,
        policy=policy,
        chunk_grid=chunk_grid,
        link=link,
        ucx_profile=ucx_profile,
        threads=threads,
        layers=layers,
        served_model_name=served_model_name,
        port=port,
        run_dir=run_dir,
        models_dir=models_dir,
        etcd_endpoints=etcd_endpoints,
        cluster=cluster,
        pipeline=pipeline,
        config=config,
        trace_file=trace_file,
        log_level=log_level,
        log_format=log_format,
    )
    with errors_as_lines("up"):
        run_mesh(options, ready_timeout)


def run_mesh(options: UpOptions, ready_timeout_s: float) -> None:
    """Start the mesh and supervise it until a signal comes. Raises WaveppError when it cannot be started or kept up."""
    from wavepp.cli.local.cluster import LocalCluster
    from wavepp.cli.local.options import check_port, plan_up
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
                _start(cluster, plan, options, signals, ready_timeout_s)
                cluster.supervise(signals.wait, lambda name: stderr().print(f"{name} died, starting it again"))
            except StopRequestedError:
                pass
            finally:
                forget_address(options.run_dir)
                if signals.requested:
                    console.print("stopping (again Ctrl-C: at once)")
                cluster.stop()
        console.print("stopped")


def _start(
    cluster: LocalCluster, plan: UpPlan, options: UpOptions, signals: StopSignals, ready_timeout_s: float
) -> None:
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

        cluster.wait_ready(ready_timeout_s, on_wait)
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
