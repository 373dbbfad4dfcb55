"""The formats in which a validation can be written."""

from __future__ import annotations

from ...accuracy.validate.report import Validation
from ..page.markdown import escape, sheet_markdown
from ..page.terminal import Canvas, Screen
from .json import draw_validation_csv, draw_validation_json
from .text import ValidationText, describe_validation


def render_validation(
    validation: Validation, form: str, screen: Screen, *, names: tuple[str, str], detailed_ops: bool
) -> str:
    """Write a validation as `json`, `csv`, `markdown` or `table`."""
    if form == "json":
        return draw_validation_json(validation)
    if form == "csv":
        return draw_validation_csv(validation)
    text = describe_validation(validation, names=names, detailed_ops=detailed_ops)
    return draw_validation_markdown(text) if form == "markdown" else draw_validation(text, screen)


def draw_validation(text: ValidationText, screen: Screen) -> str:
    """Draw a validation as facts, tables, notes and warnings."""
    canvas = Canvas(screen)
    for label, fact in text.facts:
        canvas.fact(label, fact)
    for sheet in text.sheets:
        canvas.line()
        canvas.sheet(sheet)
    canvas.line()
    for note in text.notes:
        canvas.line(note, "dim")
    if text.warnings:
        canvas.line()
    for warning in text.warnings:
        canvas.line(f"Warning: {warning}", "yellow")
    return canvas.finish()


def draw_validation_markdown(text: ValidationText) -> str:
    """Write a validation as Markdown."""
    parts = ["\n".join(f"- **{label}**: {escape(fact)}" for label, fact in text.facts)]
    for sheet in text.sheets:
        parts += [f"**{escape(sheet.title)}**", sheet_markdown(sheet)]
    parts += [escape(note) for note in text.notes]
    if text.warnings:
        parts.append("\n".join(f"- Warning: {escape(warning)}" for warning in text.warnings))
    return "\n\n".join(parts) + "\n"
