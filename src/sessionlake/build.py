"""Which code this is: the version, and a build of it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from sessionlake import __version__


@cache
def code_version() -> str:
    """As in `0.1.0+3f9c2a1b`: the part behind the plus differs wherever code differs, though the version stays."""
    root, digest = Path(__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:8]}"
