"""What a scrape of each process really has, against the table for operators."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from mesh_support import MeshClient
from wavepp.cli.local.cluster import LocalCluster
from wavepp.infra.metrics import PREFIX

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
KINDS = ("directory", "router", "stage")
STAGES = ("stage-0", "stage-1")
PROMPT_TOKENS = 500

Row = tuple[str, str, tuple[str, ...]]
"""Name, type and labels of a metric."""


def scrape(cluster: LocalCluster, process: str) -> list[Metric]:
    """The metrics of our own that a process exports."""
    (log_file,) = [p.log_file for p in cluster.processes if p.name == process]
    port = re.findall(r"metrics port (\d+)", log_file.read_text())[-1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        found = list(text_string_to_metric_families(answer.read().decode()))
    return [metric for metric in found if metric.name.startswith(f"{PREFIX}_")]


def exported(metrics: Iterable[Metric]) -> set[Row]:
    """Each metric as the table shows it. When a histogram was made is a series of its own, which says nothing."""
    rows = set()
    for metric in metrics:
        if not metric.name.endswith("_created"):
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            labels = {label for sample in metric.samples for label in sample.labels} - {"le"}
            rows.add((name, metric.type, tuple(sorted(labels))))
    return rows


def documented(process: str) -> set[Row]:
    """The rows of the table for one kind of process."""
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| (\w+) \| (.*?)\| .+ \|$", OPERATIONS.read_text(), re.MULTILINE)
    return {
        (name, kind, tuple(re.findall(r"\w+", labels))) for who, name, kind, labels in rows if who in (process, "all")
    }


def value(metrics: Iterable[Metric], name: str, **labels: str) -> float:
    """One sample."""
    (found,) = [s.value for m in metrics for s in m.samples if s.name == name and s.labels == labels]
    return found


async def test_the_table_names_exactly_what_each_process_exports(mesh: LocalCluster) -> None:
    for kind in KINDS:
        for process in (p.name for p in mesh.processes if p.name.startswith(kind)):
            found = exported(await asyncio.to_thread(scrape, mesh, process))
            assert found == documented(kind), process
    in_table = {name for kind in KINDS for name, _, _ in documented(kind)}
    assert set(re.findall(rf"{PREFIX}_[a-z_]+[a-z]", OPERATIONS.read_text())) == in_table


async def test_counters_of_all_stages_agree_on_what_they_have_done(mesh: LocalCluster, client: MeshClient) -> None:
    await client.quiet()
    before = {name: await asyncio.to_thread(scrape, mesh, name) for name in ("router", *STAGES)}
    await client.answer([7_000 + i for i in range(PROMPT_TOKENS)], 2)
    await client.quiet()
    after = {name: await asyncio.to_thread(scrape, mesh, name) for name in ("router", *STAGES)}

    def grown(process: str, name: str, **labels: str) -> float:
        return value(after[process], name, **labels) - value(before[process], name, **labels)

    assert grown("router", "wavepp_ended_requests_total", outcome="done") == 1
    waves = grown("router", "wavepp_done_waves_total")
    assert waves >= 2
    for stage in STAGES:
        assert grown(stage, "wavepp_done_waves_total") == waves
        # The second token comes from the first one, which is a row of its own.
        assert grown(stage, "wavepp_computed_tokens_total") == PROMPT_TOKENS + 1
        assert grown(stage, "wavepp_executor_busy_seconds_total") > 0
    sent, received = ({"direction": way} for way in ("sent", "received"))
    assert grown("stage-0", "wavepp_link_frames_total", **sent) == waves
    assert grown("stage-1", "wavepp_link_frames_total", **received) == waves
    passed_on = grown("stage-0", "wavepp_link_bytes_total", **sent)
    assert passed_on == grown("stage-1", "wavepp_link_bytes_total", **received) > 0
    assert grown("stage-0", "wavepp_link_frames_total", **received) == 0
    assert grown("stage-1", "wavepp_link_frames_total", **sent) == 0
