"""`python -m perf.sim study`: questions about the scheduler that are not cells of the grid."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Annotated

import typer
from perf.sim.studies import Fairness, MpuLoss, TwoCold, WrongPrior
from rich.table import Table

from perf.sim import studies
from wavepp.cli.terminal import errors_as_lines, stdout
from wavepp.profiles.profile import load_profile


class Study(Enum):
    """Which one."""

    FAIRNESS = "fairness"
    PRIOR = "prior"
    MPU_LOSS = "mpu-loss"
    TWO_COLD = "two-cold"


def study(
    name: Annotated[
        Study,
        typer.Argument(
            help="fairness: a huge request among short ones. prior: a wrong start on unequal stages. mpu-loss: what "
            "makes mpu slower than static. two-cold: two cold prompts that meet."
        ),
    ],
    profile: Annotated[str, typer.Option(help="Cost profile; each study has its own if absent.")] = "",
) -> None:
    """Answer one question by simulation, in a table."""
    with errors_as_lines("study", program="perf.sim"):
        if name is Study.FAIRNESS:
            _show_fairness(studies.fairness(load_profile(profile or "kimi-k3-gb300-pp8")))
        elif name is Study.PRIOR:
            _show_priors(studies.wrong_priors(load_profile(profile or "one-slow-stage")))
        elif name is Study.TWO_COLD:
            _show_two_cold(studies.two_cold(load_profile(profile or "kimi-k3-gb300-pp8")))
        else:
            _show_losses(studies.mpu_losses(load_profile(profile or "kimi-k3-gb300-pp8")))


def _show_fairness(rows: Sequence[Fairness]) -> None:
    _table(
        "short requests (2K) of 15 clients, without and with a 600K one always under way; simulated, P = 8",
        ("policy", "p50 alone", "p50 beside", "p99 alone", "p99 beside", "x", "the huge one", "util alone", "beside"),
        [
            (
                row.policy,
                f"{row.p50_alone_ms:,.0f} ms",
                f"{row.p50_beside_ms:,.0f} ms",
                f"{row.p99_alone_ms:,.0f} ms",
                f"{row.p99_beside_ms:,.0f} ms",
                f"{row.p99_beside_ms / row.p99_alone_ms:.2f}",
                f"{row.huge_ms / 1e3:.1f} s",
                f"{row.utilisation_alone:.3f}",
                f"{row.utilisation_beside:.3f}",
            )
            for row in rows
        ],
    )


def _show_priors(rows: Sequence[WrongPrior]) -> None:
    _table(
        "utilisation after 200 waves on unequal stages; simulated, policy cost, P = 8",
        ("workload", "clients", "true costs", "worst prior", "difference", "launch, token, pair off by", "no prior"),
        [
            (
                row.workload,
                str(row.concurrency),
                f"{row.fair:.3f}",
                f"{row.worst:.3f}",
                f"{row.worst - row.fair:+.3f}",
                ", ".join(f"x{factor:g}" for factor in row.worst_factors),
                f"{row.no_prior:.3f}",
            )
            for row in rows
        ],
    )


def _show_losses(rows: Sequence[MpuLoss]) -> None:
    _table(
        "reuse 256K, 32 clients; simulated, P = 8; throughput relative to static",
        ("room for", "launch", "mpu", "cost", "waves/request: static", "mpu", "cost"),
        [
            (
                "all" if row.room > 1000 else str(row.room),
                f"{row.launch_ms:g} ms",
                f"{row.mpu - 1:+.1%}",
                f"{row.cost - 1:+.1%}",
                f"{row.waves_static:.2f}",
                f"{row.waves_mpu:.2f}",
                f"{row.waves_cost:.2f}",
            )
            for row in rows
        ],
    )


def _show_two_cold(rows: Sequence[TwoCold]) -> None:
    policies = list(rows[0].completion_ms)
    _table(
        "two cold prompts, the later one sent so much of a prompt's work after the first; first / later, simulated",
        ("prompt", "P", "sent after", *policies),
        [
            (
                f"{row.prompt_tokens / 1024:.0f}K",
                str(row.stages),
                f"{row.offset:.2f}",
                *(f"{first / 1e3:.2f} / {later / 1e3:.2f} s" for first, later in row.completion_ms.values()),
            )
            for row in rows
        ],
    )


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    stdout().print(table)
