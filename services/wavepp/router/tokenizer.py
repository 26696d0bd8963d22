"""Text to token ids and back, with the model's own tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from wavepp.core.errors import InvalidInputError
from wavepp.infra.errors import StartupError
from wavepp.router.encoding_threads import EncodingThreads
from wavepp.router.token_bytes_bound import token_bytes_max
from wavepp.router.token_ids import token_array

UNREADABLE: Final = "\N{REPLACEMENT CHARACTER}"
"""What decoders give for bytes that are no character, or not yet."""
AT_ONCE_CHARS_MAX: Final = 512
"""Texts up to this length are encoded on the event loop (below a millisecond)."""
HELD_TOKENS_MAX: Final = 16
"""So many tokens wait for the end of a character. It has at most 4 bytes, so no more than 4 tokens that are not skipped
are waited for with reason."""


class TextCodec:
    """A checkpoint's tokenizer. Belongs to one event loop."""

    def __init__(self, directory: Path) -> None:
        """Raises StartupError, naming the file, when a part of the tokenizer is missing or damaged."""
        path = directory / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:
            raise StartupError(f"cannot load tokenizer {path}: {error}") from error
        # A prompt is what the client sent: never cut to a length that the file says, and never filled up to one.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._token_bytes_max = token_bytes_max(self._tokenizer)
        self._threads = EncodingThreads()
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

    async def encode(self, text: str, *, chat: bool, tokens_max: int) -> bytes:
        """Token bytes of plain text, or (`chat`) of `text` as one user message.

        Raises InvalidInputError when the model has no chat template, or when so long a text must have more than
        `tokens_max` tokens; others may have more, too. Raises QueueFullError when too much text is being encoded.
        """
        if len(text) <= AT_ONCE_CHARS_MAX:
            return self._encode(text, chat, tokens_max)
        return await self._threads.run(len(text.encode()), self._encode, text, chat, tokens_max)

    def _encode(self, text: str, chat: bool, tokens_max: int) -> bytes:
        prompt = self._as_message(text) if chat else text
        size = len(prompt.encode())
        if self._token_bytes_max is not None and size > tokens_max * self._token_bytes_max:
            raise InvalidInputError(
                f"the prompt has {size} bytes, which is more than {tokens_max} tokens, the limit: a token of this "
                f"model is at most {self._token_bytes_max} bytes; shorten it"
            )
        # The batch call releases the interpreter, `encode` does not: a long text would stop everything else.
        [encoding] = self._tokenizer.encode_batch_fast([prompt], add_special_tokens=not chat)
        return token_array(encoding.ids).tobytes()

    def _as_message(self, text: str) -> str:
        if self._template is None:
            raise InvalidInputError("this model has no chat template; send the text without chat, as it is")
        try:
            return self._template.render(
                messages=[{"role": "user", "content": text}], add_generation_prompt=True, **self._variables
            )
        except TemplateError as error:
            raise InvalidInputError(f"the chat template refused the text: {error}") from error

    def decode(self, tokens: list[int]) -> str:
        """Text of tokens, without special tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


class StreamDecoder:
    """Text of a growing list of tokens, in pieces that never split a character.

    The pieces together are what `TextCodec.decode` gives for all tokens, without an unfinished character at the end.
    The library's own `DecodeStream` would do, but for tokens that give no text: it decodes all of them again at every
    step, and once a run of bytes is broken it raises at every step that follows.

    Two exceptions: a byte-fallback decoder makes a whole run of bytes unreadable when the run ends up broken, and
    characters of the run that were given out by then stay so; and a character whose bytes have about a dozen tokens
    without text between them is not waited for.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        # The tokens of the last piece: decoders treat the first token of a text differently from those after it.
        self._context: list[int] = []
        self._context_text = ""
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """The new text after one more token; empty while a character is incomplete. Bounded work for each token."""
        self._held.append(token)
        new = self._added_by(self._held)
        if (not new or new.endswith(UNREADABLE)) and len(self._held) < HELD_TOKENS_MAX:
            return ""
        ready = self._ready(new)
        ready_tokens, self._held = self._held[:ready], self._held[ready:]
        piece = self._added_by(ready_tokens)
        if piece:
            self._context, self._context_text = ready_tokens, self._codec.decode(ready_tokens)
        return piece

    def _added_by(self, tokens: list[int]) -> str:
        """The text of `tokens` after the context."""
        text = self._codec.decode(self._context + tokens)
        if text.startswith(self._context_text):
            return text[len(self._context_text) :]
        # Bytes that made characters are part of a broken run now. What was given out stays; what is new stands alone.
        return self._codec.decode(tokens)

    def _ready(self, new: str) -> int:
        """How many held tokens, whose text is `new`, come before the character that may still be completed."""
        if new.endswith(UNREADABLE):
            for ready in range(len(self._held) - 1, 0, -1):
                rest = self._codec.decode(self._held[ready:])
                # A cut within a character makes two unreadable parts of one.
                if rest and self._added_by(self._held[:ready]) + rest == new:
                    return ready
        return len(self._held)


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
