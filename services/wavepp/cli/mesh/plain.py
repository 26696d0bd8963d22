"""Messages as plain values for JSON: every field is there, under its name in the proto, whole numbers as numbers."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

_INT64_TYPES: Final = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})


def to_plain(message: Message) -> dict[str, Any]:
    """As json_format gives it, but 64-bit integers are numbers, not strings, and what is absent is null."""
    found = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return _mend(message, found)


def _mend(message: Message, found: dict[str, Any]) -> dict[str, Any]:
    mended: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = found.get(field.name)
        inner = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            number = field.message_type.fields_by_name["value"].cpp_type in _INT64_TYPES
            value = {key: int(each) if number else each for key, each in (value or {}).items()}
        elif value is None:
            pass
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            if isinstance(value, list):
                value = [_mend(each, plain) for each, plain in zip(inner, value, strict=True)]
            else:
                value = _mend(inner, value)
        elif field.cpp_type in _INT64_TYPES:
            value = [int(each) for each in value] if isinstance(value, list) else int(value)
        mended[field.name] = value
    return mended
