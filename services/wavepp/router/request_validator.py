"""What a request must be before it is let in: every check at the door, each with its limit in the message."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

import numpy as np

from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import RequestId
from wavepp.core.keys import Namespace, prefix_keys, root_key
from wavepp.core.limits import (
    NAME_BYTES_MAX,
    REQUEST_ID_BYTES_MAX,
    SALT_BYTES_MAX,
    TEXT_BYTES_MAX,
    TOKEN_BYTES,
    TOP_LOGPROBS_MAX,
)
from wavepp.core.router.requests import NewRequest
from wavepp.core.waves.types import ChosenToken
from wavepp.router.errors import NeverFitsError, UnknownNameError
from wavepp.router.response import chosen_token
from wavepp.router.token_ids import TokenArray, token_array
from wavepp.router.tokenizer import TextCodec
from wavepp.v1 import prefill_pb2, types_pb2

P = ParamSpec("P")
T = TypeVar("T")

ON_LOOP_TOKENS_MAX: Final = 8192
"""Prompts up to this length are checked and hashed on the event loop (well below a millisecond)."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the pipeline serves, and what a request must fit. `kv_blocks_min`: of the stage that has least."""

    name: str
    fingerprint: str
    cache_dtype: str
    vocab_size: int
    tokens_max: int
    prompt_tokens_max: int
    output_tokens_max: int
    block_tokens: int
    alignment_tokens: int
    eos_token_ids: frozenset[int]
    kv_blocks_min: int
    kv_blocks_min_stage: int


class RequestValidator:
    """Turns a client's message into a request for the dispatcher, or raises what is wrong with it."""

    def __init__(self, model: ServedModel, codec: TextCodec | None) -> None:
        self.model = model
        self.codec = codec

    async def admit(self, message: prefill_pb2.PrefillRequest, traceparent: str) -> NewRequest:
        """Raises InvalidInputError, UnknownNameError and NeverFitsError; nothing is reserved."""
        request = self._request_id(message)
        self._check_names(message)
        output_tokens = self._output_budget(message)
        sampling = _check_sampling(message.sampling)
        tokens = await self._tokens(message)
        self._check_lengths(len(tokens) // TOKEN_BYTES, output_tokens)
        namespace = Namespace(
            self.model.fingerprint,
            self.model.cache_dtype,
            self.model.block_tokens,
            message.adapter if message.HasField("adapter") else None,
            message.cache_salt if message.HasField("cache_salt") else None,
        )
        keys = await _off_loop(len(tokens) // TOKEN_BYTES > ON_LOOP_TOKENS_MAX, prefix_keys, namespace, tokens)
        return NewRequest(
            request=request,
            prompt=tokens,
            root_key=root_key(namespace),
            keys=keys,
            output_tokens_max=output_tokens,
            end_tokens=frozenset() if message.ignore_eos else self.model.eos_token_ids,
            priority=message.priority,
            context=types_pb2.GrantContext(request_id=request, traceparent=traceparent, sampling=sampling),
            generated=self._generated(message, output_tokens),
        )

    # ---- checks ----

    def _generated(self, message: prefill_pb2.PrefillRequest, output_tokens: int) -> tuple[ChosenToken, ...]:
        """What an earlier call has given, which must leave something to do."""
        given = message.generated
        if len(given) >= output_tokens:
            raise InvalidInputError(f"{len(given)} tokens are generated already; max_tokens is {output_tokens}")
        for place, token in enumerate(given):
            if token.index != place:
                raise InvalidInputError(f"generated token {place} has index {token.index}; give them in order, from 0")
            if token.token_id >= self.model.vocab_size:
                raise InvalidInputError(
                    f"generated token {place} has id {token.token_id}; ids must be 0 to {self.model.vocab_size - 1}"
                )
            if token.token_id in self.model.eos_token_ids and not message.ignore_eos:
                raise InvalidInputError(f"generated token {place} ends the text; there is nothing to go on with")
            if len(token.top) > TOP_LOGPROBS_MAX:
                raise InvalidInputError(f"generated token {place} has {len(token.top)} alternatives, at most 20")
        return tuple(chosen_token(token) for token in given)

    def _request_id(self, message: prefill_pb2.PrefillRequest) -> RequestId:
        name = message.request_id
        _check_bytes("request_id", name, REQUEST_ID_BYTES_MAX)
        if any(ord(c) < 32 or ord(c) == 127 for c in name):
            raise InvalidInputError("request_id has control characters; use printable ones")
        return RequestId(name or f"req-{uuid.uuid4().hex}")

    def _check_names(self, message: prefill_pb2.PrefillRequest) -> None:
        _check_bytes("model", message.model, NAME_BYTES_MAX)
        _check_bytes("cache_salt", message.cache_salt, SALT_BYTES_MAX)
        _check_bytes("adapter", message.adapter, NAME_BYTES_MAX)
        if message.model and message.model != self.model.name:
            raise UnknownNameError(f"model {message.model!r} is not served here; this is {self.model.name!r}")
        if message.HasField("adapter"):
            raise UnknownNameError(f"adapter {message.adapter!r} is unknown; this model is served without adapters")

    def _output_budget(self, message: prefill_pb2.PrefillRequest) -> int:
        wanted = message.max_tokens if message.HasField("max_tokens") else 1
        if not 1 <= wanted <= self.model.output_tokens_max:
            raise InvalidInputError(f"max_tokens is {wanted}; it must be 1 to {self.model.output_tokens_max}")
        return wanted

    async def _tokens(self, message: prefill_pb2.PrefillRequest) -> bytes:
        match message.WhichOneof("prompt"):
            case "text":
                return await self._encode(message.text, chat=message.chat)
            case "token_ids":
                count = len(message.token_ids.ids)
                self._check_prompt_length(count)
                return await _off_loop(count > ON_LOOP_TOKENS_MAX, self._checked_ids, message.token_ids.ids)
            case "token_bytes":
                raw = message.token_bytes
                if len(raw) % TOKEN_BYTES:
                    raise InvalidInputError(
                        f"token_bytes has {len(raw)} bytes; it must be a multiple of 4 (little-endian u32 each)"
                    )
                self._check_prompt_length(len(raw) // TOKEN_BYTES)
                return await _off_loop(len(raw) > ON_LOOP_TOKENS_MAX * TOKEN_BYTES, self._checked_bytes, raw)
        raise InvalidInputError("the prompt is missing; give text, token_ids or token_bytes")

    async def _encode(self, text: str, *, chat: bool) -> bytes:
        if self.codec is None:
            raise InvalidInputError("this router has no tokenizer; send token_ids or token_bytes instead of text")
        if not text:
            raise InvalidInputError("the prompt is empty; give at least one token")
        _check_bytes("text", text, TEXT_BYTES_MAX)
        tokens = await self.codec.encode(text, chat=chat, tokens_max=self.model.prompt_tokens_max)
        self._check_prompt_length(len(tokens) // TOKEN_BYTES)
        return tokens

    def _check_prompt_length(self, count: int) -> None:
        if count < 1:
            raise InvalidInputError("the prompt is empty; give at least one token")
        if count > self.model.prompt_tokens_max:
            raise InvalidInputError(
                f"the prompt has {count} tokens, at most {self.model.prompt_tokens_max}; shorten it"
            )

    def _checked_ids(self, ids: Sequence[int]) -> bytes:
        return self._check_ids(token_array(ids))

    def _checked_bytes(self, raw: bytes) -> bytes:
        self._check_ids(np.frombuffer(raw, dtype="<u4"))
        return raw

    def _check_ids(self, ids: TokenArray) -> bytes:
        largest = int(ids.max())
        if largest >= self.model.vocab_size:
            at = int(np.argmax(ids >= self.model.vocab_size))
            wrapped = " (a negative id wraps to such a number)" if ids[at] >= 1 << 31 else ""
            raise InvalidInputError(
                f"token {at} has id {int(ids[at])}; ids must be 0 to {self.model.vocab_size - 1}{wrapped}"
            )
        return ids.astype("<u4", copy=False).tobytes()

    def _check_lengths(self, prompt_tokens: int, output_tokens: int) -> None:
        total = prompt_tokens + output_tokens
        if total > self.model.tokens_max:
            raise InvalidInputError(
                f"{prompt_tokens} prompt tokens and an output budget of {output_tokens} make {total}; the model takes "
                f"{self.model.tokens_max} in all"
            )
        blocks = -(-(total - 1) // self.model.block_tokens)
        if blocks > self.model.kv_blocks_min:
            raise NeverFitsError(
                f"the request needs {blocks} blocks of {self.model.block_tokens} tokens, stage "
                f"{self.model.kv_blocks_min_stage} has {self.model.kv_blocks_min} in all; shorten the prompt or the "
                "output budget, or start the stages with more blocks"
            )


def _check_bytes(field: str, value: str, bytes_max: int) -> None:
    length = len(value.encode())
    if length > bytes_max:
        raise InvalidInputError(f"{field} has {length} bytes, at most {bytes_max}")


def _check_sampling(sampling: types_pb2.Sampling) -> types_pb2.Sampling:
    if not 0.0 <= sampling.temperature <= 100.0:
        raise InvalidInputError(f"temperature is {sampling.temperature}; it must be 0 (greedy) to 100")
    if not 0.0 <= sampling.top_p <= 1.0:
        raise InvalidInputError(f"top_p is {sampling.top_p}; it must be 0 (off) to 1")
    if sampling.top_logprobs > TOP_LOGPROBS_MAX:
        raise InvalidInputError(f"top_logprobs is {sampling.top_logprobs}, at most {TOP_LOGPROBS_MAX}")
    return sampling


async def _off_loop(large: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run small work at once and large work in a thread, so that the event loop keeps its pace."""
    return await asyncio.to_thread(work, *args, **kwargs) if large else work(*args, **kwargs)
