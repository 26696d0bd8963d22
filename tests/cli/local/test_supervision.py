"""The parts of a supervisor: signals, the run directory, processes and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wavepp.cli.local.leftovers import end_leftovers, forget_processes, note_processes
from wavepp.cli.local.processes import RESTARTS_MAX, ManagedProcess, ProcessDiedError, too_often
from wavepp.cli.local.run_dir import RunDirBusyError, own_run_dir
from wavepp.cli.local.signals import StopRequestedError, StopSignals

_SLEEPER = "import time; time.sleep(600)"
_STUBBORN = "import signal, sys, time; signal.signal(15, 1); print('deaf', flush=True); time.sleep(600)"


@pytest.fixture
def default_hangup() -> Iterator[None]:
    """SIGHUP as a terminal's programs have it; whoever runs the tests may have ignored it (nohup, some CI)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("default_hangup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_a_request_to_stop_and_the_second_one_is_more(number: signal.Signals) -> None:
    seen: list[str] = []
    before = signal.getsignal(number)
    with StopSignals() as signals:
        signals.on_first = lambda: seen.append("first")
        signals.on_second = lambda: seen.append("second")
        assert not signals.wait(0)
        signals.check()
        os.kill(os.getpid(), number)
        assert signals.wait(60)
        assert signals.requested
        with pytest.raises(StopRequestedError):
            signals.check()
        os.kill(os.getpid(), number)
        assert signals.wait(60)
    assert seen == ["first", "second"]
    assert signal.getsignal(number) is before


def test_a_run_directory_belongs_to_one_mesh_at_a_time(tmp_path: Path) -> None:
    busy = rf"another mesh runs in .* \(process {os.getpid()}\)"
    with own_run_dir(tmp_path / "run"), pytest.raises(RunDirBusyError, match=busy), own_run_dir(tmp_path / "run"):
        pass
    with own_run_dir(tmp_path / "run"):
        pass


def test_what_a_killed_supervisor_left_is_ended_also_when_it_is_deaf(tmp_path: Path) -> None:
    quiet = subprocess.Popen([sys.executable, "-c", _SLEEPER])
    deaf = subprocess.Popen([sys.executable, "-c", _STUBBORN], stdout=subprocess.PIPE)
    assert deaf.stdout is not None
    with deaf.stdout:
        assert deaf.stdout.readline() == b"deaf\n"
    note_processes(tmp_path, {"quiet": quiet.pid, "deaf": deaf.pid})
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wavepp.cli.local.leftovers.TERM_GRACE_S", 1.0)
        with own_run_dir(tmp_path, lines.append):
            assert lines == ["ended what an earlier run had left running: quiet, deaf"]
    assert quiet.wait(10) == -signal.SIGTERM
    assert deaf.wait(10) == -signal.SIGKILL
    assert end_leftovers(tmp_path) == []


def test_a_process_that_only_has_the_number_is_left_alone(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    note_processes(tmp_path, {"gone": gone.pid})
    gone.wait(30)
    assert end_leftovers(tmp_path) == []
    other = subprocess.Popen([sys.executable, "-c", _SLEEPER])
    try:
        (tmp_path / "processes.json").write_text(f'{{"other": {{"pid": {other.pid}, "started": 1}}}}')
        assert end_leftovers(tmp_path) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait(10)


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', '{"a": {"pid": "x"}}'])
def test_a_damaged_note_names_nobody(tmp_path: Path, content: str) -> None:
    (tmp_path / "processes.json").write_text(content)
    assert end_leftovers(tmp_path) == []
    forget_processes(tmp_path)


def test_the_reason_of_a_process_that_refused_to_start_is_its_own_line(tmp_path: Path) -> None:
    process = ManagedProcess("directory", "wavepp.directory", ("--no-such-flag", "1"), tmp_path / "d.log")
    process.start()
    process.wait_stopped(60)
    with pytest.raises(ProcessDiedError, match=r"^directory ended with exit code 2: .*no-such-flag") as caught:
        process.check()
    assert "wavepp.directory:" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_last_lines_tell_how_another_one_ended(tmp_path: Path) -> None:
    process = ManagedProcess("x", "wavepp.stage", (), tmp_path / "x.log")
    assert process.last_words() == "no log"
    (tmp_path / "x.log").write_text("\n".join(f"line {i}" for i in range(9)))
    assert process.last_words() == "line 4 | line 5 | line 6 | line 7 | line 8"


def test_restarts_are_counted_within_a_time_only() -> None:
    now = time.monotonic()
    assert not too_often([now] * RESTARTS_MAX)
    assert too_often([now] * (RESTARTS_MAX + 1))
    assert not too_often([now - 3600] * 100)
