"""The options of `wavepp up`: what they are called, what they say of themselves, and whom they are for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import typer

from wavepp.cli.mesh.address import PORT, RUN_DIR
from wavepp.cli.models.model import MODELS_DIR
from wavepp.core.waves.policy_factory import PolicyName
from wavepp.infra.logs import LogFormat, LogLevel


class To(Enum):
    """Who takes an option as a setting of the same name."""

    ALL = "every process"
    STAGES = "the stages"
    ROUTER = "the router"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `wavepp up` was given; None = not given, so that a configuration file or the processes' defaults decide."""

    model: Annotated[str, typer.Option(help="Checkpoint directory, hub id OWNER/NAME, smollm2, or emulated[:PROFILE].")]
    stages: Annotated[int, typer.Option("--stages", "-n", min=1, max=64, help="Pipeline stages (processes).")] = 2
    dtype: Annotated[
        Literal["auto", "bf16", "fp32"] | None, typer.Option(help="auto: bf16 if the CPU has it."), To.STAGES
    ] = None
    device: Annotated[str | None, typer.Option(help="Device of the stages."), To.STAGES] = None
    blocks: Annotated[
        int | None,
        typer.Option(
            min=2,
            envvar="WAVEPP_BLOCKS",
            help="Cache blocks of each stage. If absent, all stages together get a quarter of the memory left beside "
            "the weights, at most 65,536 tokens or twice the model's longest sequence.",
        ),
        To.STAGES,
    ] = None
    block_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens a block (64)."), To.STAGES] = None
    wave_tokens_max: Annotated[
        int | None,
        typer.Option(min=1, envvar="WAVEPP_WAVE_TOKENS_MAX", help="Most prefill tokens of a wave, M (512)."),
        To.STAGES,
    ] = None
    wave_requests_max: Annotated[
        int | None, typer.Option(min=1, max=512, help="Most requests of a wave."), To.STAGES, To.ROUTER
    ] = None
    policy: Annotated[PolicyName | None, typer.Option(help="How wave sizes are chosen."), To.ROUTER] = None
    chunk_grid: Annotated[
        Literal["free", "fixed"] | None,
        typer.Option(help="fixed: cut at multiples of M only, for reproducible bits."),
        To.ROUTER,
    ] = None
    link: Annotated[Literal["ucx", "socket"] | None, typer.Option(help="What carries activations."), To.STAGES] = None
    ucx_profile: Annotated[Literal["tcp", "shm"] | None, typer.Option(help="shm: shared memory."), To.STAGES] = None
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each stage's model."), To.STAGES] = None
    layers: Annotated[
        str | None, typer.Option(help="Layers of each stage, like 16,14; balanced if absent."), To.STAGES
    ] = None
    served_model_name: Annotated[str | None, typer.Option(help="Model name for clients."), To.ROUTER] = None
    port: Annotated[int, typer.Option(min=0, max=65535, help="For clients, on 127.0.0.1; 0: any free one.")] = PORT
    run_dir: Annotated[
        Path, typer.Option(help="Logs, etcd's data, and the address for the other commands."), To.ALL
    ] = RUN_DIR
    models_dir: Annotated[Path, typer.Option(help="Where fetched models are."), To.STAGES] = MODELS_DIR
    etcd_endpoints: Annotated[
        str, typer.Option(envvar="WAVEPP_ETCD_ENDPOINTS", help="host:port,... of your own etcd; none: one is started.")
    ] = ""
    cluster: Annotated[str | None, typer.Option(help="Name of the cluster, in your own etcd."), To.ALL] = None
    pipeline: Annotated[str | None, typer.Option(help="Name of the pipeline, in your own etcd."), To.ALL] = None
    config: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="TOML settings of all processes."), To.ALL
    ] = None
    trace_file: Annotated[
        Path | None, typer.Option(help="Write request traces there, a JSON span a line."), To.ROUTER
    ] = None
    log_level: Annotated[LogLevel | None, typer.Option(help="Of all processes."), To.ALL] = None
    log_format: Annotated[LogFormat | None, typer.Option(help="Of all processes."), To.ALL] = None
    ready_timeout: Annotated[float, typer.Option(min=1.0, help="Seconds until it must be ready.")] = 600.0


def flags(options: UpOptions, to: To) -> tuple[str, ...]:
    """The options that were given for these processes, as they take them."""
    hints = get_type_hints(UpOptions, include_extras=True)
    given = [
        (field.name, getattr(options, field.name)) for field in fields(options) if to in hints[field.name].__metadata__
    ]
    return tuple(
        part for name, value in given if value is not None for part in (f"--{name.replace('_', '-')}", str(value))
    )
