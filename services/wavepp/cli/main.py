"""The `wavepp` command: its parts, put together."""

from __future__ import annotations

import logging

import typer

from wavepp.cli.dataclass_options import command_of
from wavepp.cli.demo import demo
from wavepp.cli.local import up
from wavepp.cli.local.options import UpOptions
from wavepp.cli.mesh import health, prefill, status, trace
from wavepp.cli.models import model
from wavepp.cli.sim import plan, sim
from wavepp.cli.sim import trace as sim_trace

# Rich's tracebacks would print the values of local variables: prompts and salts among them.
app = typer.Typer(
    name="wavepp",
    help="Pipeline-parallel LLM prefill with prefix reuse, on this machine or against a running mesh.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("up")(command_of(UpOptions, up.up))
app.command("prefill")(prefill.prefill)
app.command("status")(status.status)
app.command("trace")(trace.trace)
app.command("health")(health.health)
app.add_typer(model.app, name="model")
sim.app.command("trace")(sim_trace.trace)
app.add_typer(sim.app, name="sim")
app.command("plan")(plan.plan)
app.command("demo")(demo.demo)


def run() -> None:
    """The console script."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    app()
