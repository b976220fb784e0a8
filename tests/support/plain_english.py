"""Finds English that is hard to read: long sentences, unusual words, docstrings that only refer elsewhere.

    python -m support.plain_english src/sessionlake/delta docs README.md

prints one finding per line. `unit/test_plain_english` checks all texts of the project in the same way.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LONGEST = 30
"""Maximum number of words in a sentence. A command or path in backticks counts as one word."""

# Words that have a plainer alternative. The right side says what to write.
PRIVATE = {
    r"anew": "again, from the start, new",
    r"(is|are|was|were|be|being) told|tells? of|told (of|in|by|as)": "reported, shown, says",
    r"at hand": "in memory, available",
    r"bears?|borne": "carries, has",
    r"(is|are|at) rest(ing)?|rests|resting": "is idle, is paused",
    r"(takes?|took|taken|taking) in": "reads, applies, consumes",
    r"(makes?|made|making) good": "catches up, repairs",
    r"(puts?|put|putting) aside": "archives, moves away",
    r"(pass|passes|passed|passing) over": "skips",
    r"(keeps?|kept|keeping) up": "keeps current, maintains",
    r"(holds?|held) to": "keeps",
    r"(comes?|came) of": "results from",
    r"let go": "released",
    r"mend(s|ed|ing)?": "repair",
    r"likewise": "in the same way, also",
    r"besides": "also",
    r"nought|thereby|therein|whereof|whence|lest|thus far|hitherto|forthwith": "a plain word",
    r"as such": "leave it out",
    r"whoever": "a process that, someone who",
    r"of (its|their|one's) own": "its own",
    r"(one's|oneself)": "your",
    r"no more": "no longer, not",
    r"lies|lying": "is, is left over",
    r"booked|(is|are) in the books": "recorded in the ledger",
    r"to begin with": "at first",
    r"in the way": "block",
    r"reckon(s|ed)?": "count, compute",
    r"is whole|are whole": "is complete, is intact",
    r"set back": "restored to an older version",
    r"goes on|go on|went on|going on": "continues, resumes",
    r"(stands?|stood) (in|on|at|here|there|beside)": "is in",
}
PRIVATE_NAMES = re.compile(
    r"(^|_)(told|anew|whole|at_hand|way_on|let_go|lying|bears|rests|resting|taken_in|made_good|put_aside|passed_over|mended)(_|$)"
)
_PRIVATE = re.compile("|".join(rf"(?P<w{number}>\b(?:{word})\b)" for number, word in enumerate(PRIVATE)), re.IGNORECASE)
_PLAIN = list(PRIVATE.values())
_POINTS_ELSEWHERE = re.compile(r"^(see|as|like|the same as)\s+`{1,2}[^`]+`{1,2}[^.]*\.?$", re.IGNORECASE)
_CODE = re.compile(r"`[^`\n]+`|https?://\S+|\{[^{}]*\}")
_END = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n|\n(?=\s*[-*|#>]|\s*\w[\w ,]*:\s)")
_FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\([^)]*\)")
_NAMES_ONLY = re.compile(r"[a-z0-9_\s]+")
_HAS_WORDS = re.compile(r"[A-Za-z]+ [a-z]+ [a-z]+")


class Finding(NamedTuple):
    """A finding: what is hard to read, and where it is."""

    file: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


def findings(paths: list[Path]) -> Iterator[Finding]:
    """Yields all findings in files, or in the `.py` and `.md` files below folders."""
    for path in paths:
        files = sorted(file for file in path.rglob("*") if file.suffix in {".py", ".md"}) if path.is_dir() else [path]
        for file in files:
            yield from _in_python(file) if file.suffix == ".py" else _in_markdown(file)


def _in_python(file: Path) -> Iterator[Finding]:
    source = file.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            line = getattr(node, "lineno", 1)
            if text and _POINTS_ELSEWHERE.match(text.strip()):
                yield Finding(file, line, f"the docstring only points elsewhere: {text.strip()}")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and PRIVATE_NAMES.search(node.name):
            yield Finding(file, node.lineno, f"private word in the name {node.name}")
        if isinstance(node, ast.arg) and PRIVATE_NAMES.search(node.arg):
            yield Finding(file, node.lineno, f"private word in the name {node.arg}")
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and PRIVATE_NAMES.search(node.id.lower()):
            yield Finding(file, node.lineno, f"private word in the name {node.id}")
        if isinstance(node, ast.Constant | ast.JoinedStr):
            for text in _texts(node):
                yield from _in_text(file, node.lineno, text)
    for line, text in _comments(source):
        yield from _in_text(file, line, text)


def _texts(node: ast.Constant | ast.JoinedStr) -> Iterator[str]:
    """Yields the text of a string that has words. Each value of an f-string counts as one word."""
    if isinstance(node, ast.Constant):
        text = node.value if isinstance(node.value, str) else ""
    else:
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        text = text.replace("\n", "\n\n")  # a line of output is read by itself
    if _HAS_WORDS.search(text) and not re.search(r"\b(SELECT|FROM|WHERE|MERGE|CREATE)\b", text):
        yield text


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yields the comments with their lines. Consecutive comment lines are one text."""
    begun, parts, last = 0, [], -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or "noqa" in token.string or "type: ignore" in token.string:
            continue
        alone = token.line.lstrip().startswith("#")
        if parts and alone and token.start[0] == last + 1:
            parts.append(token.string.lstrip("# "))
        else:
            if parts:
                yield begun, " ".join(parts)
            begun, parts = token.start[0], [token.string.lstrip("# ")]
        last = token.start[0] if alone else -1
    if parts:
        yield begun, " ".join(parts)


def _in_markdown(file: Path) -> Iterator[Finding]:
    text = _FENCED.sub(lambda found: "\n" * found[0].count("\n"), file.read_text(encoding="utf-8"))
    line = 1
    for block in re.split(r"(\n\s*\n)", text):
        yield from _in_text(file, line, _LINK.sub("]", block).replace("|", " . "))
        line += block.count("\n")


def _in_text(file: Path, line: int, text: str) -> Iterator[Finding]:
    plain = _CODE.sub("X", text)
    for found in _PRIVATE.finditer(plain):
        number = int((found.lastgroup or "w0")[1:])
        yield Finding(file, line + plain[: found.start()].count("\n"), f"«{found[0]}»: write {_PLAIN[number]}")
    place = 0
    for sentence in _END.split(plain):
        words = re.findall(r"[A-Za-z0-9'/_.-]+", sentence)
        if len(words) > LONGEST and not _NAMES_ONLY.fullmatch(sentence):
            at = line + plain[: plain.find(sentence, place)].count("\n")
            yield Finding(file, at, f"a sentence of {len(words)} words: {' '.join(words[:8])} …")
        place += len(sentence)


if __name__ == "__main__":
    found = list(findings([Path(name) for name in sys.argv[1:]]))
    sys.stdout.write("".join(f"{one}\n" for one in found) + f"{len(found)} findings\n")
