"""MkDocs hook: convert links from pages to files of the repository that are not pages.

The link becomes the file's path as text, since the location of the repository is not known here. A link to a missing
file ends the build, as MkDocs itself does for a missing page. Comments of a page for the test of its commands
(tests/docs) are removed.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")
_TEST = re.compile(r"^<!-- test: .*?-->\n", re.MULTILINE | re.DOTALL)


class LostFile(ValueError):
    """A page links to a file of the repository that does not exist."""


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Return the converted page. MkDocs calls this function with each page."""
    return _TEST.sub("", outside_links_as_text(markdown, page.file.src_uri))


def outside_links_as_text(markdown: str, page: str) -> str:
    """Convert `[words](../Makefile)` in docs/x.md to words (`Makefile`). Raise LostFile when the file does not exist.

    `page` is relative to docs/.
    """
    folder = PurePosixPath("docs", page).parent

    def shown(found: re.Match[str]) -> str:
        path = normpath(str(folder / found[2]))
        if PurePosixPath(path).parts[0] == "docs":
            return found[0]
        if not (ROOT / path).exists():
            raise LostFile(f"docs/{page}: {found[0]} leads to {path}, which is not there")
        return found[1] if found[1].strip("`") == path else f"{found[1]} (`{path}`)"

    return _LINK.sub(shown, markdown)
