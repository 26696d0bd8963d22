"""`wavepp up` as a user runs it, with an emulated model, and the other commands against it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner, Result

from wavepp.cli.main import app


def wavepp(*arguments: str) -> Result:
    """The command, in this process."""
    return CliRunner().invoke(app, list(arguments))


def error_line(result: Result) -> str:
    """The one line of an error, which is all that stderr has."""
    (line,) = result.stderr.splitlines()
    return str(line)


@dataclass
class RunningMesh:
    process: subprocess.Popen[str]
    run_dir: Path

    def wavepp(self, command: str, *arguments: str) -> Result:
        return wavepp(command, "--run-dir", str(self.run_dir), *arguments)

    def status(self) -> dict[str, Any]:
        result = self.wavepp("status", "--json")
        assert result.exit_code == 0, result.stderr
        found = json.loads(result.stdout)
        assert isinstance(found, dict)
        return found

    def read_until(self, text: str) -> list[str]:
        """Lines of the process' output up to one with `text`; an end of the output before it fails."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return lines
        raise AssertionError(f"no {text!r} in: {''.join(lines)}")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    run_dir = tmp_path_factory.mktemp("up") / "run"
    command = [sys.executable, "-m", "wavepp.cli", "up", "--model", "emulated", "--stages", "2", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--run-dir", str(run_dir)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    running = RunningMesh(process, run_dir)
    try:
        running.read_until("Ctrl-C stops it")
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


def test_prompts_get_answers_and_the_second_time_from_the_cache(mesh: RunningMesh, tmp_path: Path) -> None:
    prompt = ",".join(str(i) for i in range(300))
    for cached in (0, 256):
        result = mesh.wavepp("prefill", "--tokens", prompt, "--max-tokens", "3", "--salt", "a", "--json")
        assert result.exit_code == 0, result.stderr
        (found,) = json.loads(result.stdout)["results"]
        assert found["answer"]["cached_tokens"] == cached
        assert len(found["answer"]["token_ids"]) == 3
    both = mesh.wavepp("prefill", "--tokens", "1,2", "--tokens", "3 4 5", "-v")
    assert both.exit_code == 0
    assert "reuse: longest prefix" in both.stdout
    out = tmp_path / "t.json"
    traced = mesh.wavepp("trace", "--out", str(out), "--waves", "4")
    assert traced.exit_code == 0
    assert traced.stdout.startswith(f"4 waves in {out}")
    slices = [event for event in json.loads(out.read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 8


def test_status_shows_a_serving_mesh_with_everything_returned(mesh: RunningMesh) -> None:
    assert mesh.wavepp("prefill", "--tokens", "9,9,9").exit_code == 0
    status = mesh.status()
    assert status["state"] == "serving"
    assert [stage["stage"] for stage in status["stages"]] == [0, 1]
    for stage in status["stages"]:
        assert stage["emulated"]
        (pool,) = stage["pools"]
        assert pool["free"] + pool["cached"] + pool["pinned"] + pool["owned"] == pool["capacity"]
    shown = mesh.wavepp("status")
    assert shown.exit_code == 0
    assert "policy cost" in shown.stdout


def test_a_refused_prompt_is_one_line_with_its_code(mesh: RunningMesh) -> None:
    result = mesh.wavepp("prefill", "--tokens", "40000")
    assert result.exit_code == 1
    assert error_line(result).startswith("wavepp prefill: INVALID_ARGUMENT: token 0 has id 40000")
    result = mesh.wavepp("prefill", "--tokens", "1", "--tokens", "40000", "--json")
    assert result.exit_code == 1
    good, bad = json.loads(result.stdout)["results"]
    assert good["error"] is None
    assert bad["error"]["code"] == "INVALID_ARGUMENT"
    assert error_line(result).endswith("(1 of 2 prompts failed)")
    assert "INVALID_ARGUMENT: this router has no tokenizer" in error_line(mesh.wavepp("prefill", "--text", "hello"))


def test_its_run_directory_and_its_port_are_taken(mesh: RunningMesh, tmp_path: Path) -> None:
    result = mesh.wavepp("up", "--model", "emulated")
    assert result.exit_code == 1
    assert f"another mesh runs in {mesh.run_dir} (process {mesh.process.pid})" in error_line(result)
    port = mesh.status()["router"]["address"].rpartition(":")[2]
    result = wavepp("up", "--model", "emulated", "--port", port, "--run-dir", str(tmp_path))
    assert result.exit_code == 1
    assert error_line(result).startswith(f"wavepp up: cannot listen on 127.0.0.1:{port}: Address already in use")


def test_a_killed_stage_comes_back_and_requests_wait_for_it(mesh: RunningMesh) -> None:
    before = mesh.status()["stages"][0]
    os.kill(before["pid"], signal.SIGKILL)
    mesh.read_until("stage-0 died, starting it again")
    result = mesh.wavepp("prefill", "--tokens", "5,6,7", "--deadline", "60")
    assert result.exit_code == 0, result.stderr
    after = mesh.status()["stages"][0]
    assert after["incarnation"] != before["incarnation"]
    assert after["pid"] != before["pid"]


def test_ctrl_c_stops_everything_with_exit_code_0(mesh: RunningMesh) -> None:
    """The last one of this file that uses the mesh."""
    family = psutil.Process(mesh.process.pid).children(recursive=True)
    assert len(family) == 5
    mesh.process.send_signal(signal.SIGINT)
    mesh.read_until("stopped")
    assert mesh.process.wait(60) == 0
    assert psutil.wait_procs(family, timeout=10)[1] == []
    gone = mesh.wavepp("status")
    assert gone.exit_code == 1
    assert "start one with `wavepp up`" in error_line(gone)


def test_a_missing_model_is_one_line(tmp_path: Path) -> None:
    result = wavepp("up", "--model", "/nowhere", "--port", "0", "--run-dir", str(tmp_path))
    assert result.exit_code == 1
    assert error_line(result).startswith("wavepp up: no model '/nowhere'")


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_an_unsupported_model_is_the_stages_own_line_and_nothing_is_left(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "no-such-type"}')
    before = children()
    result = wavepp("up", "--model", str(model), "--port", "0", "--run-dir", str(tmp_path / "run"))
    assert result.exit_code == 1
    assert "ended with exit code 1: model type 'no-such-type' is not supported" in error_line(result)
    assert children() == before


def test_an_etcd_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    before = children()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{nobody.getsockname()[1]}"
        result = wavepp(
            "up", "--model", "emulated", "--port", "0", "--run-dir", str(tmp_path), "--etcd-endpoints", endpoint
        )
    assert result.exit_code == 1
    assert f"etcd get /wavepp/ at {endpoint}: UNAVAILABLE" in error_line(result)
    assert children() == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("prefill", "--tokens", "1,x"), "wavepp prefill: --tokens: 'x' at position 1 is not an integer"),
        (("prefill",), "wavepp prefill: no prompt: give --text, --file or --tokens"),
        (("prefill", "--file", "/nowhere/p.txt"), "wavepp prefill: cannot read /nowhere/p.txt: No such file"),
        (("prefill", "--tokens", "1", "--address", "127.0.0.1:1"), "UNAVAILABLE: nothing answers at 127.0.0.1:1"),
        (("status", "--address", "127.0.0.1:1"), "wavepp status: UNAVAILABLE: nothing answers at 127.0.0.1:1"),
        (("model", "fetch", "nothing"), "wavepp model fetch: unknown model 'nothing'"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments: tuple[str, ...], complaint: str) -> None:
    result = wavepp(*arguments)
    assert result.exit_code == 1
    assert complaint in error_line(result)


@pytest.mark.parametrize("arguments", [("up",), ("up", "--model", "emulated", "--stages", "0"), ("trace",), ("nope",)])
def test_wrong_usage_has_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert wavepp(*arguments).exit_code == 2
