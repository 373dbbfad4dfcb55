"""Reads Protocol Buffers with Google's library, whose messages are declared here by tables of their fields."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import TraceError


def declare(package: str, messages: Mapping[str, str]) -> dict[str, Any]:
    """Return the classes of messages; a field is its number, its name (`*`: repeated) and its type.

    Fields that are not declared are skipped. Texts are declared as bytes, since a file may hold what is no UTF-8.

    >>> kinds = declare("drawing", {"Point": "1 x int64", "Line": "1 points* Point, 2 label bytes"})
    >>> line = parse(kinds["Line"], b"\\x0a\\x03\\x08\\x96\\x01\\x12\\x01A", "line")
    >>> line.points[0].x, line.label
    (150, b'A')
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # loaded by the few files of the kind

    form = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"wavecast/{package}.proto", package=package, syntax="proto2")
    for message, fields in messages.items():
        declared = file.message_type.add(name=message)
        for text in fields.split(","):
            number, name, kind = text.split()
            field = declared.field.add(name=name.removesuffix("*"), number=int(number))
            field.label = form.LABEL_REPEATED if name.endswith("*") else form.LABEL_OPTIONAL
            if kind in messages:
                field.type, field.type_name = form.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = getattr(form, f"TYPE_{kind.upper()}")
                field.options.packed = name.endswith("*") and kind != "bytes"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def messages_of(package: str) -> dict[str, str]:
    """Return the messages of a package that `messages.csv` lists, as `declare` takes them."""
    with Path(__file__).with_name("messages.csv").open(encoding="utf-8", newline="") as file:
        return {name: fields for found, name, fields in csv.reader(file) if found == package}


def parse(kind: Any, data: bytes, where: str) -> Any:
    """Return the message that bytes hold; `where` names it in errors.

    Nothing is allocated by a length that is only claimed. Raises TraceError where the bytes are no such message.

    >>> parse(declare("drawing", {"Point": "1 x int64"})["Point"], b"\\x08\\x05", "point").x
    5
    """
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except DecodeError:
        raise TraceError(
            f"{where}: found {len(data)} bytes that are no such Protocol Buffers message: the file is damaged or cut"
        ) from None


def as_text(value: bytes) -> str:
    """Return a field's text; bytes that are not UTF-8 become replacement characters.

    >>> as_text(b"stream 7")
    'stream 7'
    """
    return value.decode(errors="replace")
