"""What is relied on in etcd3aio, so that an update which changes it fails here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from etcd3aio.kv import KVService

from wavepp.infra.etcd import messages
from wavepp.infra.etcd.types import DeleteOp, GetOp, PutOp, created_at, prefix_end

SOURCES = [path for top in ("services", "shared") for path in (Path(__file__).parents[3] / top).rglob("*.py")]


@pytest.mark.parametrize(
    ("own", "library"),
    [
        (created_at("k", 7), KVService.txn_compare_create_revision("k", 7)),
        (PutOp("k", b"v", 5), KVService.txn_op_put("k", b"v", lease=5)),
        (GetOp("k"), KVService.txn_op_get("k")),
        (GetOp("k", prefix=True), KVService.txn_op_get("k", range_end=prefix_end("k"))),
        (DeleteOp("k"), KVService.txn_op_delete("k")),
        (DeleteOp("k", prefix=True), KVService.txn_op_delete("k", range_end=prefix_end("k"))),
    ],
)
def test_messages_made_here_are_those_that_the_library_makes(own: Any, library: Any) -> None:
    # Of the very class too: a transaction of the library takes no other.
    assert type(own.to_proto()) is type(library)
    assert own.to_proto() == library


def test_a_message_that_the_library_does_not_register_is_missed_by_name() -> None:
    assert messages.message("WatchRequest") is messages.WatchRequest
    with pytest.raises(KeyError, match=r"etcdserverpb\.Nothing"):
        messages.message("Nothing")


def test_nothing_imports_a_private_module_of_the_library() -> None:
    assert SOURCES
    private = re.compile(r"(?:from|import)\s+etcd3aio\S*(?:\.|\s+import\s+)_")
    assert [str(path) for path in SOURCES if private.search(path.read_text())] == []
