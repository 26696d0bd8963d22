"""The directory's gRPC service."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from wavepp.codec.admission import decode_command
from wavepp.core.errors import PeerProtocolError
from wavepp.directory.leadership import Leadership
from wavepp.directory.pipeline_admission import PipelineAdmission
from wavepp.infra.outbox import Outbox
from wavepp.infra.streams import serve_stream
from wavepp.v1 import directory_pb2, directory_pb2_grpc, prefill_pb2


class DirectoryServicer(directory_pb2_grpc.DirectoryServiceServicer):
    """Serves while this directory leads; one router at a time, a newer leader's stream ends the one before."""

    def __init__(self, leadership: Leadership) -> None:
        self.address = ""
        self._leadership = leadership

    async def Admission(  # noqa: N802 - the generated name
        self,
        request_iterator: AsyncIterator[directory_pb2.AdmissionCommand],
        context: grpc.aio.ServicerContext[directory_pb2.AdmissionCommand, directory_pb2.AdmissionEvent],
    ) -> AsyncIterator[directory_pb2.AdmissionEvent]:
        """Admission rounds, in the router's order."""
        outbox: Outbox[directory_pb2.AdmissionEvent] = Outbox()
        admission: PipelineAdmission | None = None

        def receive(command: directory_pb2.AdmissionCommand) -> None:
            nonlocal admission
            if admission is None:
                if command.WhichOneof("command") != "hello":
                    raise PeerProtocolError("the first message of the admission stream must be the hello")
                admission = self._leadership.router_hello(command.hello, outbox)
            elif admission.router is outbox:
                admission.apply(decode_command(command, admission.block_tokens))

        async for event in serve_stream(request_iterator, outbox, receive):
            yield event

    async def GetDirectoryStatus(  # noqa: N802 - the generated name
        self,
        request: directory_pb2.GetDirectoryStatusRequest,
        context: grpc.aio.ServicerContext[directory_pb2.GetDirectoryStatusRequest, prefill_pb2.DirectoryStatus],
    ) -> prefill_pb2.DirectoryStatus:
        """What this directory knows; how many records etcd has is asked of etcd."""
        status = await self._leadership.status()
        status.address = self.address
        return status
