"""What `wavepp up` makes of its options."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from wavepp.cli.local.options import UpOptions
from wavepp.cli.local.planning import PortTakenError, check_port, find_model, plan_up
from wavepp.cli.local.up import next_commands
from wavepp.cli.mesh.address import NoAddressError, find_address, forget_address, write_address
from wavepp.cli.models.fetch import FetchError


def flags(arguments: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def plan(**options: Any) -> dict[str, dict[str, str]]:
    spec = plan_up(UpOptions(**options)).spec
    return {
        "common": flags(spec.common_arguments),
        "stage": flags(spec.stage_arguments),
        "router": flags(spec.router_arguments),
    }


def test_what_is_not_given_is_left_to_the_processes_but_for_the_sizes() -> None:
    planned = plan(model="emulated", run_dir=Path("r"), models_dir=Path("m"))
    assert planned == {
        "common": {"--run-dir": "r"},
        "stage": {"--blocks": "4096", "--wave-tokens-max": "512", "--models-dir": "m"},
        "router": {},
    }


def test_a_configuration_file_decides_the_sizes_when_there_is_one(tmp_path: Path) -> None:
    planned = plan(model="emulated", config=tmp_path / "w.toml")
    assert planned["common"]["--config"] == str(tmp_path / "w.toml")
    assert "--blocks" not in planned["stage"]
    assert "--wave-tokens-max" not in planned["stage"]


def test_each_option_goes_to_the_process_that_it_is_for() -> None:
    planned = plan(
        model="emulated",
        dtype="fp32",
        blocks=99,
        block_tokens=32,
        wave_tokens_max=64,
        wave_requests_max=7,
        layers="20,12",
        link="socket",
        policy="static",
        chunk_grid="fixed",
        trace_file=Path("t"),
        log_level="debug",
        cluster="c",
    )
    assert planned["stage"].items() >= {
        ("--dtype", "fp32"),
        ("--blocks", "99"),
        ("--block-tokens", "32"),
        ("--wave-tokens-max", "64"),
        ("--wave-requests-max", "7"),
        ("--layers", "20,12"),
        ("--link", "socket"),
    }
    assert planned["router"] == {
        "--policy": "static",
        "--chunk-grid": "fixed",
        "--wave-requests-max": "7",
        "--trace-file": "t",
    }
    assert planned["common"].items() >= {("--log-level", "debug"), ("--cluster", "c")}


def test_a_checkpoint_brings_its_tokenizer_and_whether_it_chats(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    without = plan_up(UpOptions(model=str(tmp_path)))
    assert without.spec.tokenizer is None
    assert not without.chat
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("x")
    having = plan_up(UpOptions(model=str(tmp_path)))
    assert having.spec.tokenizer == tmp_path
    assert having.spec.model == str(tmp_path)
    assert having.chat


@pytest.mark.parametrize("name", ["/nowhere/at/all", "nothing", "a/b/c"])
def test_a_model_that_is_neither_a_directory_nor_a_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="there is no such directory; give one"):
        find_model(name, tmp_path, lambda _: None)


def test_a_fetched_model_is_found_by_its_hub_id(tmp_path: Path) -> None:
    (tmp_path / "owner--name").mkdir()
    (tmp_path / "owner--name" / "config.json").write_text("{}")
    assert find_model("owner/name", tmp_path, lambda _: None) == tmp_path / "owner--name"


def test_a_port_that_somebody_listens_on_is_taken() -> None:
    check_port(0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"cannot listen on 127.0.0.1:{port}"):
            check_port(port)
    check_port(port)


def test_the_address_is_the_given_one_or_that_of_the_run_directory(tmp_path: Path) -> None:
    with pytest.raises(NoAddressError, match="start one with `wavepp up`"):
        find_address(None, tmp_path)
    write_address(tmp_path, "127.0.0.1:5")
    assert find_address(None, tmp_path) == "127.0.0.1:5"
    assert find_address("host:9", tmp_path) == "host:9"
    forget_address(tmp_path)
    with pytest.raises(NoAddressError):
        find_address(None, tmp_path)


def test_the_next_commands_fit_the_mesh() -> None:
    assert next_commands(Path(".wavepp/run"), text=False, chat=False)[0] == (
        "wavepp prefill --tokens 1,2,3 --max-tokens 16"
    )
    first, second, _ = next_commands(Path("other"), text=True, chat=True)
    assert first.startswith("wavepp prefill --run-dir other --text '")
    assert "--chat" in first
    assert second == "wavepp status --run-dir other"
