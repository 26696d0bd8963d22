"""Dockerfile and compose files fit the processes that they start. No docker needed: what is read is what is there."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deployment_support import (
    CONFIGS,
    PROCESS_END_S,
    RESET,
    ROOT,
    assert_one_pipeline,
    config_of,
    image_env,
    load_one,
    module_of,
    seconds,
)
from wavepp.cli.mesh import probe
from wavepp.infra.config import ENV_PREFIX
from wavepp.infra.rpc import RpcServer

DOCKERFILE = (ROOT / "Dockerfile").read_text()
# Of the command, not of a process: see wavepp.cli.mesh.address.
COMMAND_VARIABLES = {"WAVEPP_ADDRESS"}


def base() -> dict[str, Any]:
    return load_one(ROOT / "docker-compose.yml")["services"]


def emulated() -> dict[str, Any]:
    """The services that the override makes of the base, as far as these tests look at them."""
    merged = base()
    for name, changes in load_one(ROOT / "docker-compose.emulated.yml")["services"].items():
        before = base()[changes["extends"]["service"]] if "extends" in changes else base()[name]
        env = {**before["environment"], **changes.get("environment", {})}
        merged[name] = {
            **before,
            "environment": {key: value for key, value in env.items() if value is not RESET},
            "volumes": [] if changes.get("volumes") is RESET else before.get("volumes", []),
            "depends_on": {**before["depends_on"], **changes.get("depends_on", {})},
        }
    return merged


FILES = pytest.mark.parametrize("services", [base(), emulated()], ids=["base", "emulated"])


def ours(services: dict[str, Any]) -> dict[str, Any]:
    return {name: service for name, service in services.items() if name != "etcd"}


def environment(service: dict[str, Any]) -> dict[str, str]:
    """What is set in any case; a variable without a value is passed on only if the user sets it."""
    return {name: value for name, value in service["environment"].items() if value is not None}


def configs(services: dict[str, Any], module: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {
        name: config_of(service["command"], environment(service), monkeypatch)
        for name, service in ours(services).items()
        if module_of(service["command"]) == module
    }


# ---- the image ----


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


def test_the_images_variables_are_settings() -> None:
    known = {f"{ENV_PREFIX}{name.upper()}" for config in CONFIGS.values() for name in config.model_fields}
    assert not set(image_env()) - known - COMMAND_VARIABLES


def test_the_image_probes_and_exposes_the_ports_that_it_sets() -> None:
    env = image_env()
    ports = [env[f"WAVEPP_{name}_PORT"] for name in ("BIND", "LINK", "METRICS")]
    (exposed,) = re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)
    assert exposed.split() == ports
    assert env["WAVEPP_ADDRESS"] == f"127.0.0.1:{ports[0]}"


PROBE = re.search(
    r"^HEALTHCHECK --interval=(?P<interval>\S+) --timeout=(?P<timeout>\S+) .*\\\n +CMD (?P<command>.*)$",
    DOCKERFILE,
    re.MULTILINE,
)


def test_the_probe_of_the_image_is_there_and_ends_in_time() -> None:
    assert PROBE is not None
    (source, target) = re.findall(r"^COPY --from=wavepp --chmod=444 /build/(\S+) (\S+)$", DOCKERFILE, re.MULTILINE)[0]
    assert (ROOT / source).samefile(probe.__file__)
    assert target in PROBE["command"].split()
    assert seconds(PROBE["timeout"]) > probe.TIMEOUT_S


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
async def test_the_probe_of_the_image_asks_where_its_settings_say(host: str) -> None:
    assert PROBE is not None
    command = PROBE["command"].replace("/opt/wavepp/probe.py", f'"{probe.__file__}"')
    server = RpcServer()
    port = await server.start(host, 0)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**image_env(), "PATH": path, "WAVEPP_BIND_HOST": host, "WAVEPP_BIND_PORT": str(port)}
    try:
        for serving in (False, True):
            await server.set_serving(serving)
            asked = await asyncio.to_thread(
                subprocess.run, ["/bin/sh", "-c", command], env=env, capture_output=True, text=True, timeout=30
            )
            said = f"{host}:{port} says {'SERVING' if serving else 'NOT_SERVING'}\n"
            assert (asked.returncode, asked.stdout, asked.stderr) == (0 if serving else 1, said, "")
    finally:
        await server.stop(0)


def test_the_image_is_built_from_locked_versions_and_runs_as_nobody_special() -> None:
    installs = re.findall(r"pip install [^&\n]*", DOCKERFILE)
    assert installs
    assert all("-c constraints.txt" in line or "--no-deps --no-build-isolation" in line for line in installs)
    (user,) = re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE)
    assert user == "10001:10001"


# ---- compose ----


@FILES
def test_every_service_starts_a_process_with_settings_that_it_takes(
    services: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, service in ours(services).items():
        config = config_of(service["command"], environment(service), monkeypatch)
        known = {f"{ENV_PREFIX}{field.upper()}" for field in type(config).model_fields}
        passed_on = {key for key in service["environment"] if key.startswith(ENV_PREFIX)}
        assert not passed_on - known, name
        assert config.advertise_address == name, "others find it under its service's name"


@FILES
def test_there_are_one_directory_one_router_and_all_stages_of_one_pipeline(
    services: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = configs(services, "wavepp.stage", monkeypatch)
    assert_one_pipeline(list(stages.values()))
    assert list(configs(services, "wavepp.directory", monkeypatch)) == ["directory"]
    (router,) = configs(services, "wavepp.router", monkeypatch)
    assert set(services[router]["depends_on"]) == {"etcd", "directory", *stages}, "so that it stops before them"
    passed_on = [sorted(services[name]["environment"]) for name in stages]
    assert all(names == passed_on[0] for names in passed_on), "what a user sets reaches every stage"


@FILES
def test_everybody_uses_the_etcd_of_the_file(services: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    flags = dict(flag.split("=", 1) for flag in services["etcd"]["command"][1:])
    assert flags["--advertise-client-urls"] == "http://etcd:2379"
    assert flags["--listen-client-urls"] == "http://0.0.0.0:2379"
    for module in CONFIGS:
        for name, config in configs(services, module, monkeypatch).items():
            assert config.etcd_endpoints == ("etcd:2379",), name
            assert services[name]["depends_on"]["etcd"] == {"condition": "service_healthy"}, name
    assert all(set(service.get("depends_on", {})) <= set(services) for service in services.values())


@FILES
def test_only_clients_port_is_published_and_on_this_machine_only(services: dict[str, Any]) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {"router": [f"127.0.0.1:${{PORT:-8470}}:{image_env()['WAVEPP_BIND_PORT']}"]}


@FILES
def test_containers_may_do_no_more_than_they_must(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"privileged", "cap_add", "network_mode", "pid", "devices"} & set(service), name
        assert set(service["deploy"]["resources"]["limits"]) == {"memory", "pids"}, name
        assert service["restart"] == "unless-stopped", name


@FILES
def test_a_container_is_not_killed_before_its_process_has_ended_by_itself(services: dict[str, Any]) -> None:
    for name, service in ours(services).items():
        assert service["init"] is True, name
        assert seconds(service["stop_grace_period"]) > PROCESS_END_S, name


@FILES
def test_a_model_is_mounted_where_it_is_looked_for(services: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for module, setting in (("wavepp.stage", "model"), ("wavepp.router", "tokenizer")):
        for name, config in configs(services, module, monkeypatch).items():
            wanted = str(getattr(config, setting) or "emulated")
            mounts = services[name].get("volumes", [])
            assert [mount["target"] for mount in mounts] == ([] if wanted == "emulated" else [wanted]), name
            assert all(mount["read_only"] and not mount["bind"]["create_host_path"] for mount in mounts), name
