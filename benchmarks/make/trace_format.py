"""What a trace holds, from the declarations of columns and records: as Markdown for its page, and as a JSON Schema."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterable
from typing import Any, Final

from wavecast.formats.trace.column import MAX_INTEGER, MAX_SCALAR, ColumnSpec, Table, columns
from wavecast.formats.trace.fields import FieldSpec, record_fields
from wavecast.formats.trace.tables import FORMAT_NAME, FORMAT_VERSION, TABLES, Device, Meta, Quality
from wavecast.formats.trace.validate import MAX_ENUMERATED, column_range

KIND_NAMES: Final[dict[type, str]] = {str: "string", int: "integer ≥ 0", float: "number ≥ 0", bool: "true or false"}
JSON_TYPES: Final[dict[type, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}
INTEGER_LIST: Final = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_SCALAR}}

Schema = dict[str, Any]


def render_reference() -> str:
    """Return the Markdown of all fields and columns."""
    records = (("meta", Meta), ("devices[]", Device), ("quality", Quality))
    parts = [_render(name, record, "field", _field_rows(record, "")) for name, record in records]
    parts += [_render(name, table, "column", map(_column_row, columns(table))) for name, table in TABLES.items()]
    return "\n".join(parts)


def _render(name: str, record: type, what: str, rows: Iterable[str]) -> str:
    lines = [f"### `{name}`", "", _first_sentence(record), "", f"| {what} | value | left out means | meaning |"]
    return "\n".join([*lines, "|---|---|---|---|", *rows, ""])


def _field_rows(record: Any, prefix: str) -> list[str]:
    docs = field_docs(record)
    rows: list[str] = []
    for field in record_fields(record):
        if field.is_record:
            rows += _field_rows(field.kind, f"{prefix}{field.name}.")
        else:
            rows.append(_row(f"`{prefix}{field.name}`", *_field_cells(field), docs.get(field.name, "")))
    return rows


def _field_cells(field: FieldSpec) -> tuple[str, str]:
    if field.is_required:
        return KIND_NAMES[field.kind], "(required)"
    unknown = {True: "true", False: "false", None: "not known"}
    default = unknown[field.default] if isinstance(field.default, bool | None) else f"`{field.default}`"
    return KIND_NAMES[field.kind], default


def _column_row(spec: ColumnSpec) -> str:
    default = "(required)" if spec.default is None else str(int(spec.default))
    return _row(f"`{spec.name}`", _describe_values(spec), default, spec.doc)


def _describe_values(spec: ColumnSpec) -> str:
    low, high = column_range(spec)
    if spec.refers_to:
        return f"index into `{spec.refers_to}`" + (", or -1" if low < 0 else "")
    if high < MAX_ENUMERATED:
        return f"{low} to {high}"
    text = spec.dtype if spec.minimum is None else f"{spec.dtype} ≥ {low}"
    return text + (f", {spec.width} per row" if spec.width else "")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def render_schema() -> str:
    """Return the JSON Schema of this version; what it cannot say (equal lengths, references), `validate` checks."""
    major = FORMAT_VERSION.partition(".")[0]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
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
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _table_schema(table: type[Table]) -> Schema:
    specs = list(columns(table))
    return {
        "type": "object",
        "description": _first_sentence(table),
        "properties": {spec.name: _column_schema(spec) for spec in specs},
        "required": [spec.name for spec in specs if spec.default is None],
    }


def _column_schema(spec: ColumnSpec) -> Schema:
    low, high = column_range(spec)
    parts = [spec.doc]
    if spec.width:
        parts.append(f"{spec.width} integers per row, row after row")
    if spec.refers_to:
        parts.append(f"index into {spec.refers_to}")
    if spec.default is not None:
        parts.append(f"{int(spec.default)} where left out")
    items = {"type": "integer", "minimum": low, "maximum": high}
    return {"description": "; ".join(parts), "type": "array", "items": items}


def _record_schema(record: Any) -> Schema:
    docs = field_docs(record)
    fields = record_fields(record)
    schema: Schema = {"type": "object", "description": _first_sentence(record)}
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


def field_docs(record: type) -> dict[str, str]:
    """Return the docstrings that follow a record's fields in its source, as plain text on one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0]
    docs: dict[str, str] = {}
    name = ""
    for node in body.body if isinstance(body, ast.ClassDef) else []:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            docs[name] = " ".join(str(node.value.value).split())
            name = ""
    return docs


def _first_sentence(record: type) -> str:
    return str(record.__doc__).strip().split("\n")[0]
