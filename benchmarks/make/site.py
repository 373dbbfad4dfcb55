"""What mkdocs does to pages beside showing them (`mkdocs.yml` names this file as a hook).

Links out of docs/ name files of the checkout, which a site does not hold: they become the file's name. Transcripts are
shown as they are: coloured as a shell's, a table's `#` would begin a prompt. In code within tables GitHub wants `\\|`,
where mkdocs' Markdown would show the stroke.
"""

from __future__ import annotations

import re
from posixpath import dirname, join, normpath
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s:#]+)(#[^)]*)?\)")
_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_WORDS = re.compile(r"<code>[^<\n]*</code>")
_OPTION = re.compile(r"--[a-z][\w-]*")
_IN_SITE = (".md", ".png", ".svg")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page whose links stay within the site."""
    folder = dirname(page.file.src_uri)

    def rewritten(found: re.Match[str]) -> str:
        target = normpath(join("docs", folder, found[2]))
        if target.startswith("docs/") and target.endswith(_IN_SITE):
            return found[0]
        return f"{found[1]} (`{target}`)"

    markdown = markdown.replace("```console\n", "```text\n")
    markdown = _ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)
    return _LINK.sub(rewritten, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Return a page in whose text no option's name is broken after its strokes."""
    return _WORDS.sub(lambda found: _OPTION.sub(r'<span class="option">\g<0></span>', found[0]), html)
