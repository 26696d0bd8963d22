"""etcd's own messages and streams, under the names that etcd's API gives them.

etcd3aio has them in a private module. Importing it registers them with protobuf too, and from there they are taken:
those names are a wire protocol's, and stay whatever becomes of the library's modules. Why they are not generated here:
docs/decisions/etcd-client.md.
"""

from __future__ import annotations

from typing import Any, Final

import etcd3aio  # noqa: F401 - registers the messages
import grpc
from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass

_PACKAGE: Final = "etcdserverpb"


def message(name: str) -> Any:
    """The class of one of etcd's messages. Raises KeyError when etcd3aio does not register it."""
    return GetMessageClass(Default().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


CompareMessage: Final = message("Compare")
RequestOp: Final = message("RequestOp")
PutRequest: Final = message("PutRequest")
RangeRequest: Final = message("RangeRequest")
DeleteRangeRequest: Final = message("DeleteRangeRequest")
LeaseKeepAliveRequest: Final = message("LeaseKeepAliveRequest")
WatchRequest: Final = message("WatchRequest")
WatchCreateRequest: Final = message("WatchCreateRequest")


def open_stream(channel: grpc.aio.Channel, service: str, method: str) -> Any:
    """The callable that opens streams of one of etcd's methods with requests and responses both ways."""
    found = Default().FindServiceByName(f"{_PACKAGE}.{service}").FindMethodByName(method)
    return channel.stream_stream(
        f"/{found.containing_service.full_name}/{found.name}",
        request_serializer=GetMessageClass(found.input_type).SerializeToString,
        response_deserializer=GetMessageClass(found.output_type).FromString,
    )
