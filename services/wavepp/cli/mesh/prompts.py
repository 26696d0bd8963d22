"""What a user gives as prompts, as requests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wavepp.core.errors import InvalidInputError
from wavepp.core.limits import TEXT_BYTES_MAX
from wavepp.core.tokens import TOKEN_ID_MAX, encode_tokens
from wavepp.v1 import prefill_pb2

NAME_CHARS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Prompt:
    """name: for people. Exactly one of text and token_bytes (little-endian u32 each) is set."""

    name: str
    text: str | None = None
    token_bytes: bytes | None = None

    def put_into(self, request: prefill_pb2.PrefillRequest, *, chat: bool) -> None:
        """Make it the prompt of `request`; `chat` has an effect on text only."""
        if self.text is not None:
            request.text = self.text
            request.chat = chat
        else:
            request.token_bytes = self.token_bytes or b""


def collect_prompts(texts: Sequence[str], files: Sequence[Path], tokens: Sequence[str]) -> list[Prompt]:
    """All prompts: texts first, then files ("-" is stdin), then token lists. Raises InvalidInputError."""
    prompts = [Prompt(_short(text), text=utf8("--text", text)) for text in texts]
    prompts += [Prompt(_short(str(path)), text=_read(path)) for path in files]
    prompts += [Prompt(_short(given), token_bytes=encode_tokens(parse_tokens(given))) for given in tokens]
    if not prompts:
        raise InvalidInputError("no prompt: give --text, --file or --tokens, each as often as you like")
    return prompts


def utf8(option: str, given: str) -> str:
    """`given`, or InvalidInputError when the command line's bytes were no UTF-8."""
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{option} is not UTF-8 text at character {error.start}") from None
    return given


def parse_tokens(given: str) -> list[int]:
    """Token ids separated by commas or spaces. Raises InvalidInputError, which names the first that is none."""
    parts = given.replace(",", " ").split()
    if not parts:
        raise InvalidInputError("--tokens is empty; give token ids like 1,2,3")
    ids = []
    for position, part in enumerate(parts):
        try:
            value = int(part)
        except ValueError:
            raise InvalidInputError(f"--tokens: {part[:40]!r} at position {position} is not an integer") from None
        if not 0 <= value <= TOKEN_ID_MAX:
            raise InvalidInputError(f"--tokens: {value} at position {position} is not from 0 to {TOKEN_ID_MAX}")
        ids.append(value)
    return ids


def _read(path: Path) -> str:
    try:
        if str(path) == "-":
            raw = sys.stdin.buffer.read(TEXT_BYTES_MAX + 1)
        else:
            with path.open("rb") as file:
                raw = file.read(TEXT_BYTES_MAX + 1)
        if len(raw) > TEXT_BYTES_MAX:
            raise InvalidInputError(f"{path} has more than {TEXT_BYTES_MAX} bytes, the limit of a text prompt")
        return raw.decode()
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= NAME_CHARS_MAX else f"{line[: NAME_CHARS_MAX - 3]}..."
