"""The client API: one prefill request in, its tokens out, whichever router leads meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import grpc

from wavepp.core.errors import InvalidInputError, InvariantError
from wavepp.core.limits import MESSAGE_BYTES_MAX, TOKEN_BYTES
from wavepp.core.router.requests import FailureKind
from wavepp.infra.backoff import Backoff
from wavepp.infra.leader import Leader
from wavepp.router.calls import Call
from wavepp.router.dispatch_driver import DispatchDriver
from wavepp.router.errors import DeadlineError, MovedError, NotLeadingError, NotServingError
from wavepp.router.leadership import Leadership
from wavepp.router.relay import Relay, is_forwarded
from wavepp.router.request_validator import RequestValidator
from wavepp.router.response import prefill_response, prefill_token
from wavepp.router.tokenizer import StreamDecoder
from wavepp.router.tracing import RequestTrace, Tracing
from wavepp.router.unread import write_in_time
from wavepp.v1 import prefill_pb2, prefill_pb2_grpc

TRACEPARENT: Final = "traceparent"
LEADER_WAIT_LEASES: Final = 2
"""So many times to live of a lease a call waits for a router that leads: who died is replaced within one."""
RELAY_PAUSE_S: Final = 0.05
TAKEN_S: Final = 1.0
"""Who has had a request for longer had taken it, so the wait for the next leader begins anew."""


class PrefillServicer(prefill_pb2_grpc.PrefillServiceServicer):
    """Checks, takes in, waits, answers. A client that goes away stops its request, wherever that is.

    Where another router leads, calls are sent on to it. One that moves while a request is under way takes it on after
    the tokens that the client has: nothing is sent twice.
    """

    def __init__(self, leadership: Leadership, relay: Relay, tracing: Tracing) -> None:
        self._leadership = leadership
        self._relay = relay
        self._tracing = tracing
        self.draining = False
        self._calls = 0
        self._waiting = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def drain(self) -> None:
        """Take no new requests."""
        self.draining = True

    async def until_idle(self) -> None:
        """Return when no call is under way."""
        await self._idle.wait()

    async def Prefill(  # noqa: N802 - the generated name
        self,
        request: prefill_pb2.PrefillRequest,
        context: grpc.aio.ServicerContext[prefill_pb2.PrefillRequest, prefill_pb2.PrefillResponse],
    ) -> prefill_pb2.PrefillResponse:
        """The whole answer at once."""
        async with contextlib.aclosing(self._answer(request, context, stream=False)) as events:
            async for event in events:
                if event.HasField("done"):
                    return event.done
        raise InvariantError("an answer ended without its last event")

    async def PrefillStream(  # type: ignore[override]  # noqa: N802 - the generated name; writes instead of yielding
        self,
        request: prefill_pb2.PrefillRequest,
        context: grpc.aio.ServicerContext[prefill_pb2.PrefillRequest, prefill_pb2.PrefillEvent],
    ) -> None:
        """Each token as it is chosen, then the answer as `Prefill` gives it."""
        async with contextlib.aclosing(self._answer(request, context, stream=True)) as events:
            async for event in events:
                await write_in_time(context, event)

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

    # ---- wherever the request runs ----

    async def _answer(
        self, request: prefill_pb2.PrefillRequest, context: Any, *, stream: bool
    ) -> AsyncGenerator[prefill_pb2.PrefillEvent, None]:
        trace = self._tracing.begin(_traceparent(context), request.request_id)
        self._calls += 1
        self._idle.clear()
        try:
            async with contextlib.aclosing(self._anywhere(request, context, trace, stream)) as events:
                async for event in events:
                    yield event
        except grpc.aio.AioRpcError as error:
            # The leader's own answer goes to the client as it is.
            trace.failed(error)
            await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
        except BaseException as error:
            trace.failed(error)
            raise
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def _anywhere(
        self, request: prefill_pb2.PrefillRequest, context: Any, trace: RequestTrace, stream: bool
    ) -> AsyncGenerator[prefill_pb2.PrefillEvent, None]:
        """The request's events, from this router or from the one that leads, and on from another one when it moves."""
        forwarded = is_forwarded(context)
        if len(request.generated) > self._leadership.config.output_tokens_max:
            raise InvalidInputError(
                f"{len(request.generated)} tokens are generated already; the output budget is at most "
                f"{self._leadership.config.output_tokens_max}"
            )
        given = list(request.generated)
        backoff = Backoff(RELAY_PAUSE_S)
        ends = self._ends(context)
        until = time.monotonic() + self._leader_wait_s
        while True:
            leader = await self._leader(forwarded, min(until, ends))
            began = time.monotonic()
            if leader is None:
                source = self._here(request, ends, trace, stream)
            else:
                source = self._there(leader, request, context, ends, trace)
            try:
                async with contextlib.aclosing(source) as events:
                    async for event in events:
                        if event.HasField("token"):
                            if event.token.index < len(given):
                                continue  # the last one again, see `_resumed`
                            given.append(event.token)
                        yield event
                return
            except MovedError as error:
                if forwarded:
                    raise NotLeadingError(str(error)) from error
                now = time.monotonic()
                if now > began + TAKEN_S:
                    until = now + self._leader_wait_s
                elif now > until:
                    raise
                request = _resumed(request, given, self._end_tokens(request))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_s()):
                    await self._leadership.turned()

    def _end_tokens(self, request: prefill_pb2.PrefillRequest) -> frozenset[int]:
        validator = self._leadership.validator
        return frozenset() if validator is None or request.ignore_eos else validator.model.eos_token_ids

    @property
    def _leader_wait_s(self) -> float:
        return LEADER_WAIT_LEASES * self._leadership.config.lease_ttl_s

    async def _leader(self, forwarded: bool, until: float) -> Leader | None:
        """The router that leads, None for this one; waits for one until then. Raises NotServingError when none does."""
        leadership = self._leadership
        while not leadership.leading:
            if forwarded:
                raise NotLeadingError("this router does not lead")
            if leadership.leader is not None:
                return leadership.leader
            self._open()
            if self._waiting >= leadership.config.queue_requests_max:
                raise NotServingError(f"no router leads, and {self._waiting} requests wait for one, the limit")
            self._waiting += 1
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    await leadership.turned()
            except TimeoutError:
                why = leadership.hindrance or "none was elected"
                raise NotServingError(f"no router leads this pipeline: {why}") from None
            finally:
                self._waiting -= 1
        return None

    async def _there(
        self, leader: Leader, request: prefill_pb2.PrefillRequest, context: Any, ends: float, trace: RequestTrace
    ) -> AsyncGenerator[prefill_pb2.PrefillEvent, None]:
        """As the leader answers."""
        limit_s = max(0.0, ends - time.monotonic())
        events = self._relay.events(leader, request, context, trace.traceparent, limit_s)
        async with contextlib.aclosing(events):
            async for event in events:
                if event.HasField("done"):
                    trace.relayed(leader.address)
                yield event

    async def _here(
        self, request: prefill_pb2.PrefillRequest, ends: float, trace: RequestTrace, stream: bool
    ) -> AsyncGenerator[prefill_pb2.PrefillEvent, None]:
        """As this router's pipeline answers."""
        driver, call = await self._take(request, ends, trace)
        timer = self._deadline(ends, driver, call)
        try:
            decoder = StreamDecoder(self._leadership.codec) if stream and self._leadership.codec else None
            if decoder is not None:
                for token in request.generated:
                    decoder.push(token.token_id)
            while (found := await call.next_token()) is not None:
                text = decoder.push(found[1].token) if decoder else ""
                yield prefill_pb2.PrefillEvent(token=prefill_token(*found, text))
            outcome = await call.result()
        finally:
            timer.cancel()
            driver.stop(call, FailureKind.CANCELLED, "the client is gone")
        trace.finished(outcome, call.waves, driver)
        yield prefill_pb2.PrefillEvent(done=prefill_response(outcome, self._text([t.token for t in outcome.tokens])))

    async def _take(
        self, message: prefill_pb2.PrefillRequest, ends: float, trace: RequestTrace
    ) -> tuple[DispatchDriver, Call]:
        validator, driver = self._open()
        if time.monotonic() >= ends:
            raise DeadlineError("the deadline had passed when the request arrived")
        new = await validator.admit(message, trace.traceparent)
        await driver.until_free(new.request)
        # A long prompt takes its time at the door, and the door may have been shut meanwhile.
        if self._open()[1] is not driver:
            raise NotServingError("the stages were replaced by others; send the request again")
        if not self._leadership.leading:
            raise MovedError("this router does not lead any more")
        trace.identify(new.request, len(new.prompt) // TOKEN_BYTES)
        return driver, driver.submit(new, traced=trace.recording)

    def _open(self) -> tuple[RequestValidator, DispatchDriver]:
        if self.draining:
            raise NotServingError("this router stops; ask another one")
        return self._leadership.require_validator()

    def _ends(self, context: Any) -> float:
        """When the request's time is up, wherever it runs until then; on the monotonic clock."""
        remaining_s = context.time_remaining()
        limit_s = self._leadership.config.request_timeout_s
        return time.monotonic() + (limit_s if remaining_s is None else min(limit_s, float(remaining_s)))

    def _deadline(self, ends: float, driver: DispatchDriver, call: Call) -> asyncio.TimerHandle:
        began = time.monotonic()

        def passed() -> None:
            waited_s = time.monotonic() - began
            driver.stop(call, FailureKind.DEADLINE, f"the deadline passed after {waited_s:.1f} s")

        return asyncio.get_running_loop().call_later(max(0.0, ends - began), passed)

    def _text(self, tokens: list[int]) -> str:
        codec = self._leadership.codec
        return codec.decode(tokens) if codec else ""


def _resumed(
    request: prefill_pb2.PrefillRequest, given: list[prefill_pb2.PrefillToken], end_tokens: frozenset[int]
) -> prefill_pb2.PrefillRequest:
    """The request as it goes on after the tokens that the client has. Where these are all, the last one is asked for
    again: only the end of the answer is missing, and whoever computes the last token gives it.
    """
    budget = request.max_tokens if request.HasField("max_tokens") else 1
    if given and (len(given) >= budget or given[-1].token_id in end_tokens):
        given = given[:-1]
    resumed = prefill_pb2.PrefillRequest()
    resumed.CopyFrom(request)
    del resumed.generated[:]
    resumed.generated.extend(given)
    return resumed


def _traceparent(context: Any) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == TRACEPARENT and isinstance(value, str):
            return value
    return ""
