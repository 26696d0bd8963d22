"""`python -m perf.sim`, from the repository's root."""

from __future__ import annotations

import typer
from perf.sim.grid_command import grid
from perf.sim.retention_command import retention
from perf.sim.study_command import study
from perf.sim.tables import tables

app = typer.Typer(
    name="perf.sim",
    help="What the scheduler's policies reach: the router's own classes in virtual time.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("grid")(grid)
app.command("study")(study)
app.command("retention")(retention)
app.command("tables")(tables)

if __name__ == "__main__":
    app()
