"""For `make site`: links to files outside `docs` become plain text, since the site does not have them."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(((?!https?://)[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page before it is rendered; returns the page's Markdown."""
    folder = posixpath.dirname(page.file.src_uri)

    def inside(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[1] if target.startswith("..") else link[0]

    return _LINK.sub(inside, markdown)
