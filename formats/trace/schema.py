"""Builds the trace's JSON Schema from the column and record declarations.

`python -m wavecast.formats.trace.schema formats/trace/trace.schema.json` writes it.
"""

import json
import sys
from typing import Any, Final

from ..files.open import write_atomic
from .column import MAX_INTEGER, MAX_SCALAR, ColumnSpec, Table, columns
from .fields import FieldSpec, field_docs, record_fields
from .tables import FORMAT_NAME, FORMAT_VERSION, TABLES, Device, Meta, Quality
from .validate import column_range

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
JSON_TYPES: Final[dict[type, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}
INTEGER_LIST: Final = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_SCALAR}}

Schema = dict[str, Any]


def build_schema() -> Schema:
    """Return the JSON Schema of this version; what it cannot say (equal lengths, references), `validate` checks."""
    major = FORMAT_VERSION.partition(".")[0]
    return {
        "$schema": DIALECT,
        "title": f"{FORMAT_NAME} {FORMAT_VERSION}",
        "description": "One recorded iteration; see docs/reference/trace-format.md. Unknown fields are ignored.",
        "type": "object",
        "properties": {
            "format": {"const": FORMAT_NAME},
            "version": {"type": "string", "pattern": rf"^{major}\.[0-9]{{1,9}}$"},
            "meta": _record_schema(Meta),
            "devices": {"type": "array", "items": _record_schema(Device)},
            "strings": {"type": "array", "items": {"type": "string"}},
            "signatures": {"type": "array", "items": {"$ref": "#/$defs/signature"}},
            **{name: _table_schema(table) for name, table in TABLES.items()},
            "quality": _record_schema(Quality),
        },
        "required": ["format", "version"],
        "$defs": _signature_schemas(),
    }


def render_schema() -> bytes:
    """Return the text of `formats/trace/trace.schema.json`."""
    return json.dumps(build_schema(), indent=2, ensure_ascii=False).encode() + b"\n"


def _table_schema(table: type[Table]) -> Schema:
    specs = list(columns(table))
    return {
        "type": "object",
        "description": _first_sentence(table.__doc__),
        "properties": {spec.name: _column_schema(spec) for spec in specs},
        "required": [spec.name for spec in specs if spec.default is None],
    }


def _column_schema(spec: ColumnSpec) -> Schema:
    low, high = column_range(spec)
    schema: Schema = {"description": _describe_column(spec), "type": "array"}
    schema["items"] = {"type": "integer", "minimum": low, "maximum": high}
    return schema


def _describe_column(spec: ColumnSpec) -> str:
    parts = [spec.doc]
    if spec.width:
        parts.append(f"{spec.width} integers per row, row after row")
    if spec.refers_to:
        parts.append(f"index into {spec.refers_to}")
    if spec.default is not None:
        parts.append(f"{int(spec.default)} where left out")
    return "; ".join(parts)


def _record_schema(record: Any) -> Schema:
    docs = field_docs(record)
    fields = record_fields(record)
    schema: Schema = {"type": "object", "description": _first_sentence(record.__doc__)}
    schema["properties"] = {field.name: _field_schema(field, docs.get(field.name)) for field in fields}
    required = [field.name for field in fields if field.is_required]
    return schema | ({"required": required} if required else {})


def _field_schema(field: FieldSpec, doc: str | None) -> Schema:
    if field.is_record:
        return _record_schema(field.kind)
    name = JSON_TYPES[field.kind]
    schema: Schema = {"description": doc} if doc else {}
    schema["type"] = [name, "null"] if field.is_optional else name
    if field.kind in (int, float):
        schema["minimum"] = 0
    if field.kind is int:
        schema["maximum"] = MAX_INTEGER
    return schema


def _signature_schemas() -> dict[str, Schema]:
    arguments = {"type": "array", "items": {"$ref": "#/$defs/argument"}}
    return {
        "signature": {
            "description": "What an op was called with, in the order of its schema, and what it returned.",
            "type": "object",
            "properties": {"arguments": arguments, "results": arguments},
            "required": ["arguments"],
        },
        "argument": {
            "description": "null is an optional argument that was not given.",
            "anyOf": [
                {"type": ["null", "string"]},
                {"$ref": "#/$defs/number"},
                {"type": "array", "items": {"$ref": "#/$defs/number"}},
                {"$ref": "#/$defs/tensor"},
                {"type": "array", "items": {"$ref": "#/$defs/tensor"}},
                {"$ref": "#/$defs/unknown"},
            ],
        },
        "number": {
            "anyOf": [
                {"type": ["boolean", "number"]},
                _marker("float", {"enum": ["inf", "-inf", "nan"]}, "A number that JSON cannot write."),
            ]
        },
        "tensor": {
            "description": "The torch dtype's name; sizes; strides in elements where recorded, as many as sizes; "
            "of a sparse tensor the sizes of the values that it stores.",
            "type": "object",
            "properties": {"dtype": {"type": "string"}, **dict.fromkeys(("shape", "strides", "stored"), INTEGER_LIST)},
            "required": ["dtype", "shape"],
        },
        "unknown": _marker("unknown", {"const": True}, "A value that the recording did not keep."),
    }


def _marker(name: str, value: Schema, description: str) -> Schema:
    return {"description": description, "type": "object", "properties": {name: value}, "required": [name]}


def _first_sentence(doc: str | None) -> str:
    return (doc or "").strip().split("\n")[0]


if __name__ == "__main__":
    write_atomic(sys.argv[1] if len(sys.argv) > 1 else "-", render_schema())
