"""Errors of this project pass from process to process."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from wavepp.core.errors import InvalidInputError, TransitionError, WaveppError
from wavepp.core.router.admission_queue import QueueFullError
from wavepp.sim.trace import TraceError

ERRORS = [
    InvalidInputError("too long"),
    TransitionError("grant 7", "ended", "pin", ("asked", "granted", "ended")),
    TraceError(Path("requests.jsonl"), 3, "not JSON"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_pickling(error: WaveppError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert vars(again) == vars(error)


def test_this_holds_whatever_a_constructor_takes() -> None:
    for kind in (QueueFullError, *WaveppError.__subclasses__()):
        error = kind.__new__(kind, "what was wrong")
        assert str(pickle.loads(pickle.dumps(error))) == "what was wrong", kind
