"""The contracts on imports can be broken: each one names an import that it exists to refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.independence import IndependenceContract
from importlinter.contracts.layers import LayersContract

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"layers": LayersContract, "forbidden": ForbiddenContract, "independence": IndependenceContract}
CONFIGURATION = read_configuration(str(ROOT / "pyproject.toml"))
CONTRACTS = {options["name"]: options for options in CONFIGURATION["contracts_options"]}

REFUSED = [
    ("services use shared code, shared code uses the core, never the other way", "infra.rpc", "router.app"),
    ("services use shared code, shared code uses the core, never the other way", "core.keys", "infra.rpc"),
    ("services use shared code, shared code uses the core, never the other way", "codec.rounds", "infra.rpc"),
    ("services use shared code, shared code uses the core, never the other way", "profiles.profile", "sim.advice"),
    ("the core's parts import downwards only", "core.directory.ledger", "core.router.admission_queue"),
    ("the core's parts import downwards only", "core.stage.grants", "core.directory.events"),
    ("the core's parts import downwards only", "core.cache.types", "core.stage.events"),
    ("the core's parts import downwards only", "core.wire.types", "core.cache.types"),
    ("the core's parts import downwards only", "core.waves.types", "core.wire.types"),
    ("the core's parts import downwards only", "core.keys", "core.waves.types"),
    ("services reach a stage's cache and the wave planner by their doors only", "stage.worker", "core.cache.blocks"),
    ("services reach a stage's cache and the wave planner by their doors only", "router.app", "core.waves.target"),
    ("no service imports another", "router.app", "stage.config"),
    ("no service imports another", "cli.main", "router.config"),
    ("the package does without perf/", "sim.advice", "perf"),
    ("the core does no input or output", "core.router.dispatcher", "asyncio"),
    ("the core does no input or output", "core.stage.sequencer", "torch"),
]


EXTERNAL = ("asyncio", "torch", "perf")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    roots = CONFIGURATION["session_options"]["root_packages"]
    return grimp.build_graph(*roots, include_external_packages=True, cache_dir=None)


def kept(name: str, graph: grimp.ImportGraph) -> bool:
    options: dict[str, Any] = CONTRACTS[name]
    contract = KINDS[options["type"]](
        name=name, session_options=CONFIGURATION["session_options"], contract_options=options
    )
    return bool(contract.check(graph=graph, verbose=False).kept)


def test_every_contract_has_an_import_that_it_refuses() -> None:
    assert {name for name, _, _ in REFUSED} == set(CONTRACTS)


def test_every_module_of_the_cache_and_the_planner_is_a_door_or_shut() -> None:
    options = CONTRACTS["services reach a stage's cache and the wave planner by their doors only"]
    doors = {
        "cache.stage_cache",
        "cache.types",
        "waves.planner",
        "waves.policy_factory",
        "waves.step_bound",
        "waves.types",
        "waves.cost",
    }
    modules = {
        f"wavepp.core.{part}.{path.stem}"
        for part in ("cache", "waves")
        for path in (ROOT / "shared/wavepp/core" / part).glob("*.py")
        if path.stem != "__init__"
    }
    assert set(options["forbidden_modules"]) == modules - {f"wavepp.core.{door}" for door in doors}


@pytest.mark.parametrize(("name", "importer", "imported"), REFUSED)
def test_a_contract_refuses_what_it_is_for(name: str, importer: str, imported: str, graph: grimp.ImportGraph) -> None:
    if imported in EXTERNAL:
        graph.add_module(imported, is_squashed=True)
    else:
        imported = f"wavepp.{imported}"
    assert f"wavepp.{importer}" in graph.modules
    assert imported in graph.modules
    assert kept(name, graph)
    graph.add_import(importer=f"wavepp.{importer}", imported=imported)
    try:
        assert not kept(name, graph)
    finally:
        graph.remove_import(importer=f"wavepp.{importer}", imported=imported)
