"""Takes out of names what tells of a person or a machine: paths, addresses, and who is behind them.

Compilers, CUDA libraries and users put these into the names of kernels and ops. A name is read in words. A word with
a slash, a backslash or an @ is taken for a path or an address, unless it is one of the few forms that names of code
have; what follows a path may belong to it, blanks and all, so it goes too, up to the end of the bracket or quotation
that the path stands in. So a name may lose more than it must, and never less.
"""

import re
from collections.abc import Iterator
from typing import Final

PATH: Final = "<path>"
ADDRESS: Final = "<address>"

_SLASH: Final = re.compile(r"[/\\\u2044\u2215\uff0f\uff3c]|%(?:2[fF]|5[cC]|40)")
_SIGNS: Final = re.compile(rf"{_SLASH.pattern}|[@\uff20]")
"""What every path and every address holds, also as look-alikes and percent-encoded."""
_WORD: Final = re.compile(r"[^\s<>()\[\]{}\"',;|=]+")
_ROOTS: Final = (
    "bin|boot|data|datasets|dev|disk|efs|etc|export|fsx|gpfs|home|lib|lib64|local|lustre|media|mnt|net|nfs|opt|private|"
    "proc|project|projects|root|run|scratch|shared|srv|storage|sys|tmp|[Uu]sers|usr|var|Volumes|work|workspace|"
    "workspaces"
)
"""Folders that paths begin with."""
_CODE: Final = re.compile(
    r"[^/]*operator/"  # the division of C++
    rf"|(?!(?:{_ROOTS})\b)[\w-]*[^\W_][/\\](?!(?:{_ROOTS})\b)(?:[\w-]|\.(?=[0-9]))+:?"  # two names, as in `0/1`
    r"|[A-Z]{0,3}[0-9][0-9A-Z]*(?:/[A-Z]{0,3}[0-9][0-9A-Z]*)+"  # several models of a GPU
    r"|[\w.:]+@(?:plt|[0-9]+|@?[A-Z]+_[0-9][\w.]*)"  # a symbol of a library, and its version
    r"|@[\w.]+"  # a symbol of LLVM
    r"|\?[\w?$@]+"  # a mangled name of Windows
)
"""Words that hold a sign and are names of code nevertheless."""
_GLUED: Final = re.compile(rf"\w+_(?=/(?:{_ROOTS})\b)")
"""A name that a path was put behind."""
_LINE: Final = re.compile(r"(?<=\w)\.\w{1,4}((?::[0-9]{1,7}){1,2})\Z")
"""The line and column at the end of a path, which tell two lambdas of a file apart."""
_QUOTES: Final = ("'", '"')
_BLANKS_AND_QUOTES: Final = " \t\n\"'"
_PARTNERS: Final = {")": "(", "]": "[", "}": "{", ">": "<"}
_PIECE: Final = re.compile(rf"{_WORD.pattern}|[()\[\]{{}}<>\"']")


def hide_private(text: str) -> str:
    r"""Return a name with `<path>` and `<address>` in place of what tells of a person or a machine.

    Takes time in proportion to the length of the name.

    >>> hide_private("triton_/home/ann/my kernels/k.py")
    'triton_<path>'
    >>> hide_private("reduce<(lambda at /home/ann/sum.cu:12:3), 4>")
    'reduce<(lambda at <path>:12:3), 4>'
    >>> hide_private("copy to ann:secret@host.example")
    'copy to <address>'
    >>> hide_private("at::native::operator/<float>(Torch-Compiled Region: 0/1)")
    'at::native::operator/<float>(Torch-Compiled Region: 0/1)'
    """
    return text if _SIGNS.search(text) is None else "".join(_hide(text))


def _hide(text: str) -> Iterator[str]:
    """Yield the parts of a name that stay, and what stands for the others."""
    done = 0
    has_path, begin = False, None
    around: list[str] = []
    """What is open before a path, the innermost last."""
    inside: list[str] = []
    for piece in _PIECE.finditer(text):
        word = piece[0]
        if begin is not None:  # within a path, which the partner of the bracket around it ends
            is_apostrophe = word == "'" and text[piece.end() : piece.end() + 1].isalnum()
            if not inside and around and word == _closing(around[-1]) and not is_apostrophe:
                yield _mark_path(text, begin, piece.start())
                begin, done = None, piece.start()
                around.pop()
            elif around[-1:] not in (['"'], ["'"]):
                _follow(inside, word, quotes=False)
        elif _SIGNS.search(word) is None:
            _follow(around, word, quotes=True)
        elif has_path or not _is_code(text, piece):
            begin = _find_begin(text, piece, done)
            yield text[done:begin]
            has_path = True
            if _SLASH.search(word) is None:
                yield ADDRESS
                begin, done = None, piece.end()
    yield text[done:] if begin is None else _mark_path(text, begin, len(text))


def _find_begin(text: str, word: re.Match[str], done: int) -> int:
    """Return where a path or an address begins: a password may hold brackets, a name before a path is kept."""
    if "@" in word[0]:
        return 1 + max(text.rfind(mark, done, word.start()) for mark in _BLANKS_AND_QUOTES) or done
    glued = _GLUED.match(word[0])
    return word.start() + (glued.end() if glued is not None else 0)


def _mark_path(text: str, begin: int, end: int) -> str:
    """Return what stands for a path: line and column, if it has them, tell two lambdas of one file apart."""
    line = _LINE.search(text, begin, end)
    return PATH if line is None else PATH + line[1]


def _is_code(text: str, word: re.Match[str]) -> bool:
    """Say whether a word is a name of code; a slash by itself is one beside blanks or after a bracket that closes."""
    before, after = text[max(0, word.start() - 1) : word.start()], text[word.end() : word.end() + 1]
    if word[0] == "/":
        return before in (")", "]") or before + after in ("", "  ")
    return _CODE.fullmatch(word[0]) is not None or (before == ")" and word[0][0] == "/" and word[0][1:].isdecimal())


def _follow(opened: list[str], word: str, *, quotes: bool) -> None:
    """Note a bracket or a quote that opens or closes."""
    if word in _PARTNERS.values():
        opened.append(word)
    elif quotes and word in _QUOTES:
        if opened[-1:] == [word]:
            opened.pop()
        else:
            opened.append(word)
    elif word in _PARTNERS:
        while quotes and opened and opened[-1] in _QUOTES:
            opened.pop()  # it was an apostrophe
        if opened[-1:] == [_PARTNERS[word]]:
            opened.pop()


def _closing(opening: str) -> str:
    return next((closing for closing, partner in _PARTNERS.items() if partner == opening), opening)
