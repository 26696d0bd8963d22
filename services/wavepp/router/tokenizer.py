"""Text to token ids and back, with the model's own tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from wavepp.core.errors import InvalidInputError
from wavepp.core.tokens import encode_tokens
from wavepp.infra.errors import StartupError


class TextCodec:
    """A checkpoint's tokenizer. Thread-safe; `encode` may take long for long texts, so call it off the event loop."""

    def __init__(self, directory: Path) -> None:
        """Raises StartupError, naming the file, when a part of the tokenizer is missing or damaged."""
        path = directory / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:
            raise StartupError(f"cannot load tokenizer {path}: {error}") from error
        settings = _read_json(directory / "tokenizer_config.json")
        template = settings.get("chat_template")
        template_file = directory / "chat_template.jinja"
        if not template and template_file.is_file():
            template = template_file.read_text()
        self._variables = {
            name: _token_text(settings.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        }
        self._template = None
        if isinstance(template, str):
            environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
            environment.globals["raise_exception"] = _raise_template_error
            try:
                self._template = environment.from_string(template)
            except TemplateError as error:
                raise StartupError(f"chat template of {directory}: {error}") from error

    def encode(self, text: str) -> bytes:
        """Token bytes of plain text."""
        return encode_tokens(self._tokenizer.encode(text).ids)

    def encode_chat(self, text: str) -> bytes:
        """Token bytes of `text` as one user message. Raises InvalidInputError when the model has no chat template."""
        if self._template is None:
            raise InvalidInputError("this model has no chat template; send the text without chat, as it is")
        try:
            prompt = self._template.render(
                messages=[{"role": "user", "content": text}], add_generation_prompt=True, **self._variables
            )
        except TemplateError as error:
            raise InvalidInputError(f"the chat template refused the text: {error}") from error
        return encode_tokens(self._tokenizer.encode(prompt, add_special_tokens=False).ids)

    def decode(self, tokens: list[int]) -> str:
        """Text of tokens, without special tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


class StreamDecoder:
    """Text of a growing list of tokens, in pieces that never split a character."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._tokens: list[int] = []
        self._told_tokens = 0
        self._told = ""

    def push(self, token: int) -> str:
        """The new text after one more token; empty while a character is incomplete."""
        self._tokens.append(token)
        # Decoding starts a few tokens back: enough for the tokenizer's context, and constant work for each token.
        text = self._codec.decode(self._tokens)
        if text.endswith("�"):
            return ""
        new = text[len(self._told) :]
        self._told = text
        if len(self._tokens) > 32:
            self._tokens = self._tokens[-8:]
            self._told = self._codec.decode(self._tokens)
        return new


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StartupError(f"cannot read {path}: {error}") from error
    return found if isinstance(found, dict) else {}


def _token_text(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _raise_template_error(message: str) -> None:
    raise TemplateError(message)
