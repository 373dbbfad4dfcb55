"""What an expression or a statement could wrongly be."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any

COMPARISONS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
}
OPERATIONS = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
    **{ast.LShift: ast.RShift, ast.RShift: ast.LShift},
}
TWINS = (
    *(("min", "max"), ("argmin", "argmax"), ("minimum", "maximum"), ("any", "all"), ("floor", "ceil")),
    *(("zeros", "ones"), ("cumsum", "cumprod"), ("sum", "max"), ("start_ns", "end_ns"), ("left", "right")),
    *(("nanmin", "nanmax"), ("fmin", "fmax")),
)
NAMES = {name: other for pair in TWINS for name, other in (pair, pair[::-1])} | {"max": "min"}
PLAIN_KEYWORDS = {"strict", "slots", "kw_only", "repr", "stacklevel", "maxsize", "encoding", "dtype", "copy"}
"""Arguments that no output depends on, or that a type error follows at once."""
UNSEEN_CALLS = {"cast", "TypeVar", "warn"}


def is_plain(node: ast.AST) -> bool:  # noqa: PLR0911 (one case per kind of node)
    """Say whether nothing below a node decides what is computed."""
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.Import() | ast.ImportFrom() | ast.Assert():
            return True
        case ast.keyword(arg=name):
            return name in PLAIN_KEYWORDS
        case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Call(func=ast.Attribute(attr="zeros" | "ones"), args=[ast.Constant(value=0), *_]):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in UNSEEN_CALLS
        case ast.Expr(value=ast.Constant()):
            return True
    return False


def variants_of(node: Any) -> Iterator[ast.AST]:  # noqa: C901, PLR0912 (one case per kind of error)
    """Yield what an expression or statement could wrongly be."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield _changed(node, ops=[COMPARISONS[type(op)]()])
        case ast.BinOp(op=op) if type(op) in OPERATIONS and not _is_text(node):
            yield _changed(node, op=OPERATIONS[type(op)]())
        case ast.AugAssign(op=op) if type(op) in OPERATIONS:
            yield _changed(node, op=OPERATIONS[type(op)]())
        case ast.BoolOp(op=ast.And()):
            yield _changed(node, op=ast.Or())
        case ast.BoolOp(op=ast.Or()):
            yield _changed(node, op=ast.And())
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=operand):
            yield operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(value=float() as value):
            yield from (ast.Constant(2.0 * value), ast.Constant(0.0 if value else 1.0))
        case ast.Constant(value="left" | "right" as value):
            yield ast.Constant(NAMES[value])
        case ast.Attribute(attr=name) if name in NAMES and isinstance(node.ctx, ast.Load):
            yield _changed(node, attr=NAMES[name])
        case ast.Call(func=ast.Name(id="min" | "max" | "any" | "all" as name)):
            yield _changed(node, func=ast.Name(NAMES[name]))
        case ast.Call(func=ast.Name(id="abs") | ast.Attribute(attr="abs" | "sqrt"), args=[value]):
            yield value
        case ast.Call(func=ast.Attribute(attr="where"), args=[test, yes, no]):
            yield _changed(node, args=[test, no, yes])
        case ast.IfExp(body=yes, orelse=no):
            yield from (yes, no)
        case ast.Slice(lower=lower, upper=upper) if lower is not None or upper is not None:
            yield from (
                _changed(node, **{side: None}) for side in ("lower", "upper") if getattr(node, side) is not None
            )
        case ast.If(body=[ast.Return() | ast.Continue() | ast.Break()], orelse=[]):
            yield _changed(node, test=ast.Constant(False))
        case ast.If(test=test):
            yield _changed(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()


def _changed(node: Any, **fields: Any) -> Any:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return ast.fix_missing_locations(other)


def _is_text(node: ast.BinOp) -> bool:
    """Say whether an operation joins texts or lists, or types, where another operator is an error at once."""
    kinds = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    sides = (node.left, node.right)
    return any(
        isinstance(side, kinds) or (isinstance(side, ast.Constant) and isinstance(side.value, (str, bytes, type(None))))
        for side in sides
    )
