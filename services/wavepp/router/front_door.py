"""The client API: one prefill request in, its tokens out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from wavepp.core.errors import InvariantError
from wavepp.core.limits import MESSAGE_BYTES_MAX, TOKEN_BYTES
from wavepp.core.router.requests import FailureKind
from wavepp.router.calls import Call
from wavepp.router.dispatch_driver import DispatchDriver
from wavepp.router.errors import DeadlineError, NotServingError
from wavepp.router.leadership import Leadership
from wavepp.router.request_validator import RequestValidator
from wavepp.router.response import prefill_response
from wavepp.router.tokenizer import StreamDecoder
from wavepp.router.tracing import RequestTrace, Tracing
from wavepp.v1 import prefill_pb2, prefill_pb2_grpc

TRACEPARENT = "traceparent"


class PrefillServicer(prefill_pb2_grpc.PrefillServiceServicer):
    """Checks, takes in, waits, answers. A client that goes away stops its request, wherever that is."""

    def __init__(self, leadership: Leadership, tracing: Tracing) -> None:
        self._leadership = leadership
        self._tracing = tracing
        self.draining = False

    def drain(self) -> None:
        """Take no new requests."""
        self.draining = True

    async def Prefill(  # noqa: N802 - the generated name
        self,
        request: prefill_pb2.PrefillRequest,
        context: grpc.aio.ServicerContext[prefill_pb2.PrefillRequest, prefill_pb2.PrefillResponse],
    ) -> prefill_pb2.PrefillResponse:
        """The whole answer at once."""
        trace = self._tracing.begin(_traceparent(context), request.request_id)
        try:
            driver, call = await self._take(request, context, trace)
            timer = self._deadline(context, driver, call)
            try:
                outcome = await call.result()
            finally:
                timer.cancel()
                driver.stop(call, FailureKind.CANCELLED, "the client is gone")
            trace.finished(outcome, call.waves, driver)
            return prefill_response(outcome, self._text([t.token for t in outcome.tokens]))
        except BaseException as error:
            trace.failed(error)
            raise

    async def PrefillStream(  # noqa: N802 - the generated name
        self,
        request: prefill_pb2.PrefillRequest,
        context: grpc.aio.ServicerContext[prefill_pb2.PrefillRequest, prefill_pb2.PrefillEvent],
    ) -> AsyncIterator[prefill_pb2.PrefillEvent]:
        """Each token as it is chosen, then the answer as `Prefill` gives it."""
        trace = self._tracing.begin(_traceparent(context), request.request_id)
        try:
            driver, call = await self._take(request, context, trace)
            timer = self._deadline(context, driver, call)
            try:
                decoder = StreamDecoder(self._leadership.codec) if self._leadership.codec else None
                while (found := await call.next_token()) is not None:
                    index, chosen = found
                    text = decoder.push(chosen.token) if decoder else ""
                    token = prefill_pb2.PrefillToken(index=index, token_id=chosen.token, text=text)
                    yield prefill_pb2.PrefillEvent(token=token)
                outcome = await call.result()
            finally:
                timer.cancel()
                driver.stop(call, FailureKind.CANCELLED, "the client is gone")
            trace.finished(outcome, call.waves, driver)
            done = prefill_response(outcome, self._text([t.token for t in outcome.tokens]))
            yield prefill_pb2.PrefillEvent(done=done)
        except BaseException as error:
            trace.failed(error)
            raise

    async def GetModelInfo(  # noqa: N802 - the generated name
        self,
        request: prefill_pb2.GetModelInfoRequest,
        context: grpc.aio.ServicerContext[prefill_pb2.GetModelInfoRequest, prefill_pb2.GetModelInfoResponse],
    ) -> prefill_pb2.GetModelInfoResponse:
        """What is served, and its limits."""
        validator, _ = self._leadership.require_validator()
        model, first = validator.model, self._leadership.served
        if first is None:
            raise InvariantError("requests are taken before all stages were registered")
        return prefill_pb2.GetModelInfoResponse(
            model=model.name,
            model_type=first.model_type,
            fingerprint=model.fingerprint,
            vocab_size=model.vocab_size,
            tokens_max=model.tokens_max,
            block_tokens=model.block_tokens,
            alignment_tokens=model.alignment_tokens,
            stages=first.stages,
            layers=first.layers_total,
            dtype=first.dtype,
            eos_token_ids=sorted(model.eos_token_ids),
            has_tokenizer=validator.codec is not None,
            emulated=first.emulated,
            wave_tokens_max=first.wave_tokens_max,
            message_bytes_max=MESSAGE_BYTES_MAX,
        )

    # ---- inside ----

    async def _take(
        self, message: prefill_pb2.PrefillRequest, context: Any, trace: RequestTrace
    ) -> tuple[DispatchDriver, Call]:
        validator, driver = self._open()
        remaining_s = context.time_remaining()
        if remaining_s is not None and remaining_s <= 0:
            raise DeadlineError("the deadline had passed when the request arrived")
        new = await validator.admit(message, trace.traceparent)
        # A long prompt takes its time at the door, and the door may have been shut meanwhile.
        if self._open()[1] is not driver:
            raise NotServingError("the stages were replaced by others; send the request again")
        trace.identify(new.request, len(new.prompt) // TOKEN_BYTES)
        return driver, driver.submit(new, traced=trace.recording)

    def _open(self) -> tuple[RequestValidator, DispatchDriver]:
        if self.draining:
            raise NotServingError("this router stops; ask another one")
        return self._leadership.require_validator()

    def _deadline(self, context: Any, driver: DispatchDriver, call: Call) -> asyncio.TimerHandle:
        remaining_s = context.time_remaining()
        limit_s = self._leadership.config.request_timeout_s
        if remaining_s is not None:
            limit_s = min(limit_s, remaining_s)
        began = time.monotonic()

        def passed() -> None:
            waited_s = time.monotonic() - began
            driver.stop(call, FailureKind.DEADLINE, f"the deadline passed after {waited_s:.1f} s")

        return asyncio.get_running_loop().call_later(max(0.0, limit_s), passed)

    def _text(self, tokens: list[int]) -> str:
        codec = self._leadership.codec
        return codec.decode(tokens) if codec else ""


def _traceparent(context: Any) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == TRACEPARENT and isinstance(value, str):
            return value
    return ""
