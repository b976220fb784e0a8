"""Version of the installed code, including a fingerprint of its source files."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from sessionlake import __version__


@cache
def read_code_version() -> str:
    """Returns the version with a hash of the source files, for example `0.1.0+3f9c2a1b`.

    The hash differs between two builds whose code differs, even if their version is the same.
    """
    root, digest = Path(__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:8]}"
