"""The home folder, checked before anything costly starts."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sessionlake.config import Settings
from sessionlake.errors import MachineError


def require_home(settings: Settings, *folders: str) -> Path:
    """Makes the home and the named folders in it.

    Args:
        folders: paths below the home, made if missing.

    Returns:
        The home.

    Raises:
        MachineError: the home cannot be made or written.
    """
    home = settings.home
    try:
        for folder in (home, *(home / name for name in folders)):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise MachineError(
            f"home {home} cannot be written ({error.strerror or error}): make it writable, "
            "or name another folder with SESSIONLAKE_HOME"
        ) from None
    return home
