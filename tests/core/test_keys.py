"""Prefix keys: what they tell apart, what they share, and that the format stays what it is."""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wavepp.core.keys as keys_module
from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import PrefixKey
from wavepp.core.keys import Namespace, digest, extend_keys, key_at, key_count, prefix_keys, root_key
from wavepp.core.limits import KEY_BYTES, NAME_BYTES_MAX, SALT_BYTES_MAX
from wavepp.core.tokens import encode_tokens

BASE = Namespace("model-a", "bf16", 4, None, None)
PROMPT = encode_tokens(range(19))
KNOWN_ENCODING = (
    "6d01070000006d6f64656c2d616401040000006266313662010400000004000000610106000000626c7565403173010600000074656e616e74"
)
KNOWN_ROOT = "d563019c23d03936ef9b655e216560df"
KNOWN_KEYS = [
    "e1d08175177c8040276bbc2dbd616af2",
    "6bd10c5af4b7ee544542b4fa53a12d4b",
    "847ebfc5bd1b2f724a3d264ff44456f3",
    "4d709811510fcd2e2261d7a53d076009",
]
KNOWN_DIGEST = "ce85118c5cbcac64f3304694eefb1b4422bdda91a21c008896a531fb3c39f4a7"

names = st.none() | st.text(alphabet="ab\x00:é", max_size=4)
namespaces = st.builds(
    Namespace,
    model_fingerprint=st.text(alphabet="ab\x00:é", max_size=4),
    cache_dtype=st.sampled_from(["bf16", "fp8", ""]),
    block_tokens=st.integers(1, 4),
    adapter=names,
    cache_salt=names,
)


def split(packed: bytes) -> list[PrefixKey]:
    return [key_at(packed, i) for i in range(key_count(packed))]


def test_the_format_is_what_it_was() -> None:
    """Known answers: a change of these makes every cached key of a running fleet worthless."""
    namespace = Namespace("model-a", "bf16", 4, "blue@1", "tenant")
    assert namespace.encode().hex() == KNOWN_ENCODING
    assert root_key(namespace).hex() == KNOWN_ROOT
    assert [key.hex() for key in split(prefix_keys(namespace, PROMPT))] == KNOWN_KEYS
    assert digest("request", [b"a", None, b""]).hex() == KNOWN_DIGEST


def test_a_key_is_the_hash_of_the_key_before_and_the_blocks_tokens() -> None:
    key: bytes = root_key(BASE)
    expected = []
    for block in range(4):
        key = hashlib.sha256(key + encode_tokens(range(block * 4, block * 4 + 4))).digest()[:16]
        expected.append(key)
    assert split(prefix_keys(BASE, PROMPT)) == expected


def test_only_full_blocks_have_keys() -> None:
    assert [key_count(prefix_keys(BASE, encode_tokens(range(n)))) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


@given(st.lists(st.integers(0, 3), max_size=24), st.lists(st.integers(0, 3), max_size=24))
def test_keys_agree_exactly_as_far_as_the_blocks_do(a: list[int], b: list[int]) -> None:
    shared = 0
    while a[shared * 4 : shared * 4 + 4] == b[shared * 4 : shared * 4 + 4] and (shared + 1) * 4 <= min(len(a), len(b)):
        shared += 1
    keys_a, keys_b = split(prefix_keys(BASE, encode_tokens(a))), split(prefix_keys(BASE, encode_tokens(b)))
    assert keys_a[:shared] == keys_b[:shared]
    assert not set(keys_a[shared:]) & set(keys_b[shared:])


@given(namespaces, st.lists(st.integers(0, 9), max_size=20), st.data())
def test_keys_can_be_extended_from_any_block_on(ns: Namespace, tokens: list[int], data: st.DataObject) -> None:
    whole = prefix_keys(ns, encode_tokens(tokens))
    cut = data.draw(st.integers(0, key_count(whole)))
    previous = key_at(whole, cut - 1) if cut else root_key(ns)
    rest = extend_keys(previous, ns.block_tokens, encode_tokens(tokens[cut * ns.block_tokens :]))
    assert whole[: cut * KEY_BYTES] + rest == whole


@given(namespaces, namespaces)
def test_different_namespaces_share_no_key(a: Namespace, b: Namespace) -> None:
    assert (a.encode() == b.encode()) == (a == b)
    assert (root_key(a) == root_key(b)) == (a == b)


def test_every_field_of_a_namespace_separates() -> None:
    variants = [
        BASE,
        replace(BASE, model_fingerprint="model-b"),
        replace(BASE, cache_dtype="fp8"),
        replace(BASE, block_tokens=2),
        replace(BASE, adapter="blue"),
        replace(BASE, cache_salt="blue"),
        replace(BASE, adapter="blue", cache_salt="blue"),
        replace(BASE, adapter=""),
        replace(BASE, cache_salt=""),
        replace(BASE, adapter="blue@2"),
    ]
    for a, b in combinations(variants, 2):
        assert not set(split(prefix_keys(a, PROMPT))) & set(split(prefix_keys(b, PROMPT))), (a, b)


def test_an_adapter_and_a_salt_of_one_name_do_not_collide() -> None:
    a = prefix_keys(replace(BASE, adapter="blue"), PROMPT)
    b = prefix_keys(replace(BASE, cache_salt="blue"), PROMPT)
    assert not set(split(a)) & set(split(b))


def test_bytes_do_not_move_from_one_field_to_the_next() -> None:
    assert root_key(replace(BASE, adapter="ab", cache_salt="c")) != root_key(
        replace(BASE, adapter="a", cache_salt="bc")
    )
    assert digest("d", [b"ab", b"c"]) != digest("d", [b"a", b"bc"])
    assert digest("d", [None]) != digest("d", [b""]) != digest("d", [])
    assert digest("d", [b"x"]) != digest("e", [b"x"])


def test_keys_do_not_depend_on_the_process() -> None:
    script = (
        "from wavepp.core.keys import *\n"
        "from wavepp.core.tokens import encode_tokens\n"
        "p = encode_tokens(range(19))\n"
        "for a in (None, '', 'x'):\n"
        "    print(prefix_keys(Namespace('m', 'bf16', 4, a, a), p).hex())\n"
    )
    path = [entry for entry in sys.path if entry]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    here = "".join(f"{prefix_keys(Namespace('m', 'bf16', 4, a, a), PROMPT).hex()}\n" for a in (None, "", "x"))
    assert outputs == {here}


@pytest.mark.parametrize(
    "change",
    [
        {"block_tokens": 0},
        {"block_tokens": -4},
        {"block_tokens": 1 << 21},
        {"model_fingerprint": "m" * (NAME_BYTES_MAX + 1)},
        {"adapter": "é" * (NAME_BYTES_MAX // 2 + 1)},
        {"cache_salt": "s" * (SALT_BYTES_MAX + 1)},
        {"cache_salt": "\ud800"},
    ],
)
def test_a_namespace_out_of_bounds_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        replace(BASE, **change)  # type: ignore[arg-type]


def test_the_longest_names_are_taken() -> None:
    longest = replace(BASE, adapter="a" * NAME_BYTES_MAX, cache_salt="é" * (SALT_BYTES_MAX // 2))
    assert root_key(longest) != root_key(BASE)


def test_torn_or_absent_keys_are_refused() -> None:
    packed = prefix_keys(BASE, PROMPT)
    for index in (-1, 4):
        with pytest.raises(InvalidInputError, match="4 keys"):
            key_at(packed, index)
    with pytest.raises(InvalidInputError, match="inside a key"):
        key_count(packed[:-1])
    with pytest.raises(InvalidInputError, match="16 bytes"):
        extend_keys(PrefixKey(b"short"), 4, PROMPT)
    with pytest.raises(InvalidInputError, match="at least 1"):
        extend_keys(root_key(BASE), 0, PROMPT)
    with pytest.raises(InvalidInputError, match="inside a token"):
        prefix_keys(BASE, PROMPT[:-1])


HASHING = {"hashlib", "_hashlib", "_sha2", "hmac", "xxhash", "blake3", "mmh3", "cryptography"}


def hashers(source: str) -> set[str]:
    """Modules that hash, as imported by `source`, and the builtin `hash` where it is called."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash":
            found.add("hash()")
    return found & (HASHING | {"hash()"})


def test_a_second_hasher_would_be_seen() -> None:
    assert hashers("import hashlib as h\nfrom xxhash import xxh64\nx = hash(3)") == {"hashlib", "xxhash", "hash()"}


def test_nobody_but_keys_hashes() -> None:
    repository = Path(__file__).parents[2]
    sources = [
        path
        for root in ("services", "shared")
        for path in (repository / root / "wavepp").rglob("*.py")
        if (repository / "shared/wavepp/v1") not in path.parents
    ]
    assert Path(keys_module.__file__).resolve() in [path.resolve() for path in sources]
    found = {path.relative_to(repository).as_posix(): hashers(path.read_text()) for path in sources}
    assert {path: names for path, names in found.items() if names} == {"shared/wavepp/core/keys.py": {"hashlib"}}
