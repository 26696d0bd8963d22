"""The status of a mesh, for people."""

from __future__ import annotations

from typing import Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from wavepp.cli.mesh.layer_split import even_layers
from wavepp.core.waves.types import FitState
from wavepp.v1 import prefill_pb2

_ADVICE_STEPS_MIN: Final = 200
_ADVICE_GAIN: Final = 0.9
"""Less than a tenth faster is within what the learned costs may be wrong."""


def status_view(status: prefill_pb2.GetStatusResponse) -> Group:
    """Router, directory, and tables of the stages and of their pools."""
    router, directory = status.router, status.directory
    return Group(
        Text(
            f"pipeline {status.pipeline} of cluster {status.cluster}: {status.state} "
            f"(pipeline epoch {status.pipeline_epoch}, directory epoch {status.directory_epoch})"
        ),
        Text(
            f"router     {router.address}: {router.queued} queued, {router.admitting} in admission, {router.running} "
            f"running, {router.waves_in_flight} waves in flight; {router.requests_done} requests and "
            f"{router.waves_done} waves done, {router.requests_failed} failed; policy {router.policy}"
        ),
        Text(directory_line(directory)),
        stages_table(status),
        pools_table(status),
        *([costs_table(status)] if status.router.costs else []),
        *(Text(line) for line in layers_advice(status)),
    )


def directory_line(directory: prefill_pb2.DirectoryStatus) -> str:
    """The cache directory: grants, hints, rounds."""
    address = directory.address or "no leader"
    if not directory.reachable:
        return f"directory  {address}: does not answer"
    behind = [str(stage) for stage, in_sync in enumerate(directory.stage_in_sync) if not in_sync]
    hints = f"{directory.hint_keys} hint keys" + (f" (not in sync: stage {', '.join(behind)})" if behind else "")
    return (
        f"directory  {address}: {directory.grants} grants ({directory.etcd_grant_records} records in etcd), {hints}; "
        f"{directory.rounds_in_flight} rounds in flight, {directory.rounds_done} done"
    )


def stages_table(status: prefill_pb2.GetStatusResponse) -> Table:
    """A row per stage."""
    table = Table()
    for heading, numeric in (
        ("stage", True),
        ("layers", False),
        ("pid", True),
        ("address", False),
        ("incarnation", False),
        ("link", False),
        ("memory", True),
        ("leases", True),
        ("waves queued", True),
        ("waves done", True),
    ):
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for stage in status.stages:
        layers = f"[{stage.first_layer}, {stage.last_layer})" + (" emulated" if stage.emulated else "")
        if not stage.reachable:
            table.add_row(str(stage.stage), layers, "", stage.address, stage.incarnation, "does not answer")
            continue
        table.add_row(
            str(stage.stage),
            layers,
            str(stage.pid),
            stage.address,
            stage.incarnation,
            stage.link,
            f"{stage.rss_bytes / 1e6:,.0f} MB",
            f"{stage.leases:,}",
            f"{stage.waves_queued:,}",
            f"{stage.waves_done:,}",
        )
    return table


def pools_table(status: prefill_pb2.GetStatusResponse) -> Table:
    """A row per stage and pool, counts in blocks or slots."""
    table = Table()
    for heading in ("stage", "pool", "size", "free", "cached", "pinned", "owned", "reserved"):
        table.add_column(heading, justify="left" if heading == "pool" else "right", overflow="fold")
    for stage in status.stages:
        for pool in stage.pools:
            counts = (pool.capacity, pool.free, pool.cached, pool.pinned, pool.owned, pool.reserved)
            table.add_row(str(stage.stage), pool.pool, *(f"{count:,}" for count in counts))
    return table


def costs_table(status: prefill_pb2.GetStatusResponse) -> Table:
    """What the wave policy has learned, a row per stage: a step's time by launch, tokens and pairs of attention."""
    table = Table()
    for heading in ("stage", "launch", "token", "pair", "typical step", "error", "steps", "learned"):
        table.add_column(heading, justify="left" if heading == "learned" else "right", overflow="fold")
    for cost in status.router.costs:
        table.add_row(
            str(cost.stage),
            f"{cost.launch_ms:,.2f} ms",
            f"{cost.token_us:,.1f} us",
            f"{cost.pair_ps:,.0f} ps",
            f"{cost.typical_ms:,.1f} ms",
            f"{cost.relative_error:.0%}",
            f"{cost.steps:,}",
            cost.state,
        )
    return table


def layers_advice(status: prefill_pb2.GetStatusResponse) -> list[str]:
    """A line when another split of the layers would make the slowest stage much faster, by what was learned."""
    costs, stages = status.router.costs, status.stages
    learned = len(costs) == len(stages) and all(cost.state == FitState.FITTED.value for cost in costs)
    if not learned or not costs or min(cost.steps for cost in costs) < _ADVICE_STEPS_MIN:
        return []
    layers = [stage.last_layer - stage.first_layer for stage in stages]
    if min(layers) < 1 or min(cost.typical_ms for cost in costs) <= 0.0:
        return []
    slowest = max(cost.typical_ms for cost in costs)
    advice = even_layers(layers, [cost.typical_ms for cost in costs])
    if advice.slowest_ms > _ADVICE_GAIN * slowest:
        return []
    split = ",".join(str(count) for count in advice.layers)
    line = (
        f"stages are uneven: with --layers {split} the slowest one should take {advice.slowest_ms:,.1f} ms a step "
        f"instead of {slowest:,.1f} ms"
    )
    return [line]
