"""A fault of our own ends the process, whichever stream or link brought the event."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, sys
from wavepp.core.errors import {error}
from wavepp.infra.faults import fatal_faults
from wavepp.infra.process import run_process

async def main(stop):
    try:
        with fatal_faults("the test's machine"):
            raise {error}({arguments})
    except {error}:
        pass  # what a stream's handler does with it
    try:
        async with asyncio.timeout(2):
            await stop.wait()
    except TimeoutError:
        print("still running")

sys.exit(run_process(main, name="wavepp test"))
"""


def outcome(error: str, arguments: str) -> tuple[int, str]:
    program = PROGRAM.format(error=error, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_broken_invariant_stops_the_process_even_when_somebody_catches_it() -> None:
    code, said = outcome("InvariantError", "'blocks do not add up'")
    assert code == 1
    assert "still running" not in said
    assert "fault in the test's machine" in said
    assert "blocks do not add up" in said


def test_an_impossible_transition_is_such_a_fault() -> None:
    code, _ = outcome("TransitionError", "'grant 1', 'ended', 'chunk'")
    assert code == 1


def test_what_a_peer_did_wrong_is_not() -> None:
    code, said = outcome("PeerProtocolError", "'a wave out of order'")
    assert code == 0
    assert "still running" in said
