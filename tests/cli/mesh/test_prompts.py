"""Prompts as users give them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.cli.mesh.prompts import collect_prompts, parse_tokens, utf8
from wavepp.core.errors import InvalidInputError
from wavepp.core.tokens import encode_tokens
from wavepp.v1 import prefill_pb2


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1), st.sampled_from([",", " ", ", ", "\n"]))
def test_token_lists_are_read_with_any_separator(ids: list[int], separator: str) -> None:
    assert parse_tokens(separator.join(map(str, ids))) == ids


@pytest.mark.parametrize(
    ("given_tokens", "complaint"),
    [
        ("1,x,3", "'x' at position 1 is not an integer"),
        ("1,2.5", "'2.5' at position 1 is not an integer"),
        ("-1", "-1 at position 0 is not from 0 to 4294967295"),
        ("1 2 4294967296", "4294967296 at position 2 is not from 0"),
        ("", "--tokens is empty"),
        (" , ", "--tokens is empty"),
    ],
)
def test_what_is_no_token_id_is_named(given_tokens: str, complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        parse_tokens(given_tokens)


def test_prompts_come_as_texts_then_files_then_token_lists(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("from a file")
    prompts = collect_prompts(["one", "two"], [file], ["7,8"])
    assert [p.text for p in prompts] == ["one", "two", "from a file", None]
    assert prompts[3].token_bytes == encode_tokens([7, 8])


def test_no_prompt_at_all_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match="give --text, --file or --tokens"):
        collect_prompts([], [], [])


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "prompt.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"prompt\.txt"):
        collect_prompts([], [file], [])


def test_chat_is_for_text_only() -> None:
    text, tokens = collect_prompts(["hello"], [], ["1,2"])
    request = prefill_pb2.PrefillRequest()
    text.put_into(request, chat=True)
    assert request.WhichOneof("prompt") == "text"
    assert request.chat
    request = prefill_pb2.PrefillRequest()
    tokens.put_into(request, chat=True)
    assert request.WhichOneof("prompt") == "token_bytes"
    assert not request.chat


def test_a_long_prompt_has_a_short_name() -> None:
    (prompt,) = collect_prompts(["line one\nline two " * 50], [], [])
    assert len(prompt.name) == 32
    assert "\n" not in prompt.name


def test_an_argument_that_is_not_utf8_is_named() -> None:
    # What Python makes of the byte ff on a command line.
    given = b"a\xff".decode("utf-8", "surrogateescape")
    with pytest.raises(InvalidInputError, match="--text is not UTF-8 text at character 1"):
        collect_prompts([given], [], [])
    with pytest.raises(InvalidInputError, match="--salt is not UTF-8"):
        utf8("--salt", given)
    assert utf8("--salt", "schön") == "schön"
