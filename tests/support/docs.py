"""Fenced blocks and commands in README and docs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = "sh"
PROGRAM = "sessionlake"
_FENCE = re.compile(r"^```(?P<language>\w*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block. `line` is the number of its first line, from 1."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command line: environment variables set before it, program name without folder, and arguments."""

    place: str
    environment: dict[str, str]
    program: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.place}: {self.program} {' '.join(self.arguments[:3])}"


def blocks(language: str | None = None) -> Iterator[Block]:
    """Yields all blocks of a language, or of any."""
    for page in PAGES:
        yield from (block for block in _blocks(page) if language in {None, block.language})


def commands(program: str | None = None) -> Iterator[Command]:
    """Yields all command lines of a program, or of any: continued lines joined, without comments and redirections."""
    for block in blocks(SHELL):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            words = words[: words.index(">")] if ">" in words else words
            if words:
                command = _command(str(block), words)
                if program in {None, command.program}:
                    yield command


def _blocks(page: Path) -> Iterator[Block]:
    language, begun, lines = "", 0, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if fence is None:
            lines.append(line)
        elif begun:
            yield Block(page, begun, language, "\n".join(lines))
            begun = 0
        else:
            language, begun, lines = fence["language"], number + 1, []
    if begun:
        raise ValueError(f"{page}:{begun}: the block has no end")


def _command(place: str, words: list[str]) -> Command:
    count = next(n for n, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
    environment = dict(word.split("=", 1) for word in words[:count])
    return Command(place, environment, words[count].rsplit("/", 1)[-1], tuple(words[count + 1 :]))
