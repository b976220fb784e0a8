"""The README's examples: a folder as a reader has it after `git clone`, and a comparison of what a command prints."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from support.docs import README, ROOT, SHELL, Block, blocks

# What differs between two runs of the same example. Batches and their tables' versions depend on the machine's speed.
_MASKS = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?", "TIME"),
    (r"@v\d+", "@VERSION"),
    (r"\bbatch \d+", "batch NUMBER"),
    (r"\b\d+(\.\d+)? s\b", "DURATION"),
)


def clone_for_reader(folder: Path) -> Path:
    """Makes a folder with what `make demo` needs of a clone, and with the environment that it would create."""
    for name in ("Makefile", "pyproject.toml", "uv.lock", ".venv"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "sessionlake.yml", folder)
    return folder


def environment_of_reader(**more: str) -> dict[str, str]:
    """Returns an environment without what belongs to the tests' own run of make or to another lake."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "SESSIONLAKE_"))
    }
    return {**kept, **{name: os.environ[name] for name in ("SESSIONLAKE_CACHE",) if name in os.environ}, **more}


def find_commands(start: str) -> str:
    """Returns the README's one block of commands that has a line with this start."""
    [found] = [
        block.text for block in readme_blocks(SHELL) if any(line.startswith(start) for line in block.text.splitlines())
    ]
    return found


def find_output(start: str) -> str:
    """Returns the README's one block of output that begins with this text."""
    [found] = [block.text for block in readme_blocks("text") if block.text.lstrip().startswith(start)]
    return found


def readme_blocks(language: str) -> list[Block]:
    """Returns the README's blocks of a language."""
    return [block for block in blocks(language) if block.page == README]


def is_shown(expected: str, printed: str) -> bool:
    """Returns True if a command has printed what the README shows, except for times, versions, batches and durations.

    Line breaks and alignment do not count. `…` stands for anything, as `, …` also for nothing.
    """
    pattern = re.escape(_mask(expected)).replace("\\ ", " ").replace("…", ".*?")
    pattern = pattern.replace(", .*?", "(?:, .*?)?")
    return re.search(pattern, _mask(printed)) is not None


def _mask(text: str) -> str:
    for pattern, word in _MASKS:
        text = re.sub(pattern, word, text)
    return " ".join(text.split())
