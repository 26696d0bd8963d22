"""Settings: where they come from, which source wins, and what a bad one says."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field

from wavepp.infra.config import ProcessConfig, load, resolve
from wavepp.infra.errors import ConfigError


class StageLike(ProcessConfig):
    """A configuration with a setting of its own."""

    section: ClassVar[str] = "stage"
    layers: int = Field(default=4, ge=1, description="Layers of this stage.")
    warm: bool = Field(default=False, description="Warm up.")


class Demanding(ProcessConfig):
    """A configuration with a setting that has no default."""

    model: str = Field(description="Which model.")


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "wavepp.toml"


def test_defaults_hold_when_nothing_is_given() -> None:
    config = resolve(StageLike, [])
    assert (config.layers, config.lease_ttl_s, config.etcd_endpoints) == (4, 10, ("127.0.0.1:2379",))


def test_flags_win_over_environment_over_file_over_defaults(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml.write_text('cluster = "file"\npipeline = "file"\nlease_ttl_s = 20\n')
    monkeypatch.setenv("WAVEPP_CONFIG", str(toml))
    monkeypatch.setenv("WAVEPP_CLUSTER", "environment")
    monkeypatch.setenv("WAVEPP_PIPELINE", "environment")
    config = resolve(StageLike, ["--cluster", "flag"])
    assert (config.cluster, config.pipeline, config.lease_ttl_s, config.layers) == ("flag", "environment", 20, 4)


def test_object_made_directly_ignores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAVEPP_CLUSTER", "environment")
    assert StageLike(layers=2).cluster == "default"


def test_lists_are_written_with_commas_everywhere(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ("a:1", "b.c-d:2", "[::1]:3")
    assert resolve(StageLike, ["--etcd-endpoints", "a:1, b.c-d:2,http://[::1]:3/"]).etcd_endpoints == expected
    toml.write_text('etcd_endpoints = ["a:1", "b.c-d:2", "[::1]:3"]')
    assert resolve(StageLike, ["--config", str(toml)]).etcd_endpoints == expected
    monkeypatch.setenv("WAVEPP_ETCD_ENDPOINTS", ",".join(expected))
    assert resolve(StageLike, []).etcd_endpoints == expected


def test_one_file_serves_all_kinds_of_process(toml: Path) -> None:
    toml.write_text('cluster = "c"\nlayers = 1\n[stage]\nlayers = 9\n[router]\nqueue = 5\n')
    config = resolve(StageLike, ["--config", str(toml)])
    assert (config.cluster, config.layers) == ("c", 9)


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """A start that fails sets logging up, for a process that ends then."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize("ttl_s", ["-1", "0", "1", "1000000000", "x", "7.5"])
def test_bad_value_is_one_log_entry_on_stderr_and_exit_code_2(ttl_s: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load(StageLike, [f"--lease-ttl-s={ttl_s}"], name="wavepp stage")
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert out == ""
    entry = json.loads(err)
    assert entry["level"] == "critical"
    assert entry["msg"].startswith("wavepp stage: --lease-ttl-s: input should be")
    assert repr(ttl_s) in entry["msg"]


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize(
    ("flags", "variable", "is_json"),
    [
        ((), "", True),
        (("--log-format", "console"), "", False),
        (("--log-format=console",), "json", False),
        ((), "console", False),
        (("--log-format", "json"), "console", True),
        (("--log-format",), "console", False),
        (("--log-format", "nonsense"), "", True),
    ],
)
def test_a_bad_value_is_said_in_the_format_of_logs_that_was_asked_for(
    flags: tuple[str, ...],
    variable: str,
    is_json: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if variable:
        monkeypatch.setenv("WAVEPP_LOG_FORMAT", variable)
    with pytest.raises(SystemExit):
        load(StageLike, ["--lease-ttl-s", "0", *flags], name="wavepp stage")
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("{") == is_json


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--nope", "1"], "unrecognized arguments: --nope 1"),
        (["--lease-ttl-s"], "argument --lease-ttl-s: expected one argument"),
        (["--cluster", "a/b"], "--cluster: string should match pattern"),
        (["--cluster", "a" * 200], "--cluster: string should have at most 128 characters"),
        (["--etcd-endpoints", "nohost"], "'nohost' is not host:port"),
        (["--etcd-endpoints", "a:70000"], "'a:70000' is not host:port"),
        (["--etcd-endpoints", "https://a:1"], "write host:port, and set etcd_tls"),
        (["--etcd-endpoints", ""], "--etcd-endpoints: tuple should have at least 1 item"),
        (["--etcd-ca-file", "/no/such/file"], "file '/no/such/file' does not exist"),
        (["--etcd-cert-file", __file__], "only one of them is given"),
        (["--bind-host", "0.0.0.0"], "give advertise_address as well"),
        (["--advertise-address", "a b"], "not host:port"),
        (["--advertise-address", "::1:8470"], "an IPv6 address needs brackets, as in [::1]:8470"),
        (["--etcd-endpoints", "fd00::2:2379"], "'fd00::2:2379' is not host:port; an IPv6 address needs brackets"),
        (["--metrics-port", "-2"], "--metrics-port: input should be greater than or equal to -1"),
        (["--log-level", "loud"], "--log-level: input should be 'debug', 'info', 'warning' or 'error', got 'loud'"),
        (["--config", "/no/such/file"], "cannot read the configuration file /no/such/file: No such file"),
    ],
)
def test_message_names_the_setting_and_the_limit(argv: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(StageLike, argv)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_message_names_the_variable_or_file_that_a_bad_value_came_from(
    toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml.write_text("layers = 0\n")
    monkeypatch.setenv("WAVEPP_LEASE_TTL_S", "1")
    with pytest.raises(ConfigError) as error:
        resolve(StageLike, ["--config", str(toml)])
    assert "WAVEPP_LEASE_TTL_S: input" in str(error.value)
    assert "layers in the configuration file: input" in str(error.value)


def test_unknown_key_in_the_file_is_refused(toml: Path) -> None:
    toml.write_text("lease_tll_s = 9\n")
    with pytest.raises(ConfigError, match="lease_tll_s in the configuration file: no such setting"):
        resolve(StageLike, ["--config", str(toml)])


@pytest.mark.parametrize("content", [b"= 1", b"\xff\xfe", b"stage = 3"])
def test_broken_file_is_one_line(toml: Path, content: bytes) -> None:
    toml.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        resolve(StageLike, ["--config", str(toml)])
    assert "\n" not in str(error.value)
    assert str(toml) in str(error.value)


def test_missing_setting_says_how_to_give_it() -> None:
    with pytest.raises(ConfigError, match=r"--model \(or WAVEPP_MODEL\): required"):
        resolve(Demanding, [])


def test_printed_configuration_can_be_read_back(toml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--layers", "7", "--warm", "--etcd-endpoints", "a:1,b:2", "--trace-file", 'we"ird']
    argv += ["--cluster", "x", "--log-format", "console"]
    with pytest.raises(SystemExit) as ended:
        load(StageLike, [*argv, "--print-config"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert tomllib.loads(printed)["layers"] == 7
    toml.write_text(printed)
    again = resolve(StageLike, ["--config", str(toml)])
    assert again.model_dump(exclude={"config"}) == resolve(StageLike, argv).model_dump(exclude={"config"})


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load(StageLike, ["--help"], name="wavepp stage")
    out = capsys.readouterr().out
    assert ended.value.code == 0
    for name in StageLike.model_fields:
        assert f"--{name.replace('_', '-')}" in out


@pytest.mark.parametrize(
    ("host", "advertise", "published"),
    [
        ("127.0.0.1", None, "127.0.0.1:5"),
        ("::1", None, "[::1]:5"),
        ("[::1]", None, "[::1]:5"),
        ("::", "[fd00::2]", "[fd00::2]:5"),
        ("0.0.0.0", "stage-0.stages", "stage-0.stages:5"),
        ("0.0.0.0", "10.0.0.1:99", "10.0.0.1:99"),
    ],
)
def test_published_address(host: str, advertise: str | None, published: str) -> None:
    assert StageLike(bind_host=host, advertise_address=advertise).advertised(5) == published


@pytest.mark.parametrize(
    ("host", "advertise", "published"),
    [
        ("127.0.0.1", None, "127.0.0.1"),
        ("0.0.0.0", "10.0.0.2", "10.0.0.2"),
        ("0.0.0.0", "stage-2.mesh:7", "stage-2.mesh"),
        ("::1", None, "::1"),
        ("::", "[fe80::1]:7", "fe80::1"),
    ],
)
def test_published_host(host: str, advertise: str | None, published: str) -> None:
    assert StageLike(bind_host=host, advertise_address=advertise).advertised_host == published


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_address_to_listen_on_may_have_brackets(host: str) -> None:
    assert resolve(StageLike, ["--bind-host", host]).bind_host == "::1"
