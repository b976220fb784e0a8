"""Checks that files which a bundle names exist and are deployed, and that lists of requirements can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from os.path import normpath
from pathlib import Path

from sessionlake.databricks.bundle.files import BundleFiles, FileFault, ResolvedTarget, iterate_nested_texts
from sessionlake.databricks.bundle.models import is_known_only_to_deployment
from sessionlake.databricks.bundle.places import locate_fault
from sessionlake.settings.file import KeyPath

_BUILT = "dist"
"""The folder in which a build puts an artifact's wheel."""
_TEXT_KEYS = {"query_text", "serialized_dashboard"}
_FILE_KEYS = {"file_path", "notebook_path", "python_file"}
_PATH_OWNERS = {"file", "notebook"}
"""Keys whose own key `path` is the path of a file."""
_ELSEWHERE = re.compile(r"/|\w+:/")
"""Beginning of a path in the workspace, in a volume, or of an address."""
_FILES_PREFIX = "${workspace.file_path}/"
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][\w.-]*(\[[\w,. -]+\])?\s*((===|==|~=|!=|<=|>=|<|>)\s*[\w.*+!-]+\s*,?\s*)*(;.*)?", re.ASCII
)


def find_faults_of_file_paths(
    files: BundleFiles, folder: Path, target: ResolvedTarget
) -> Iterator[tuple[KeyPath, str]]:
    """Yields key and fault of each path of a target's resources whose file does not exist or is not deployed.

    Args:
        files: The bundle's files.
        folder: The bundle's folder.
        target: The target, with all variables replaced by their values.
    """
    deployed = str(target.config["workspace"]["file_path"])
    built = {str(Path(str(own.get("path", "."))) / _BUILT) for own in (target.config.get("artifacts") or {}).values()}
    for key, text in iterate_nested_texts(target.config.get("resources") or {}, ("resources",)):
        if key[-1] in _TEXT_KEYS or is_known_only_to_deployment(text):
            continue
        path = text.removeprefix(f"{deployed}/")
        if path != text:
            yield from _find_file_missing_from_deployment(files, folder, key, path)
        elif key[-1] == "whl" and not _ELSEWHERE.match(text):
            if str(Path(text).parent) not in built and not list(folder.glob(text)):
                yield key, f"no artifact is built into {Path(text).parent}, and there is no file {text}"
            if not text.endswith(".whl"):
                yield key, f"{text!r} is no wheel"
        elif _is_key_of_file_path(key) and not _ELSEWHERE.match(text) and not _is_file_read_from_git(target, key):
            # A relative path begins at the folder of the file that has it.
            start = Path(locate_fault(files, target.name, key, "").file).parent
            own = Path(normpath(start / text))
            if own.parts[:1] != ("..",):
                yield from _find_file_missing_from_deployment(files, folder, key, own.as_posix())


def find_requirements_file_faults(files: BundleFiles, folder: Path) -> Iterator[FileFault]:
    """Yields a fault for each line of the deployed requirements files that pip would not accept."""
    texts = {text for key, text in iterate_nested_texts(files.merged_content) if key[-1] == "requirements"}
    for name in sorted(text.removeprefix(_FILES_PREFIX) for text in texts if text.startswith(_FILES_PREFIX)):
        if not (folder / name).is_file():
            continue
        for number, written in enumerate((folder / name).read_text(encoding="utf-8").splitlines(), 1):
            line = re.split(r"(?:^|\s)(?:#|--)", written.strip().removesuffix("\\"))[0].strip()
            if line and not line.startswith("-") and "/" not in line and not _REQUIREMENT.fullmatch(line):
                yield FileFault(name, number, f"{line!r} is no requirement, such as fastavro==1.13.1")


def _is_key_of_file_path(key: KeyPath) -> bool:
    return key[-1] in _FILE_KEYS or (key[-1] == "path" and len(key) > 1 and key[-2] in _PATH_OWNERS)


def _is_file_read_from_git(target: ResolvedTarget, key: KeyPath) -> bool:
    """Returns True if the file that a key names is read from a Git repository, not from the bundle."""
    node = target.config
    for part in key[:-1]:
        node = node[part]  # type: ignore[index]  # a list has a number here
    return node.get("source") == "GIT"


def _find_file_missing_from_deployment(
    files: BundleFiles, folder: Path, key: KeyPath, path: str
) -> Iterator[tuple[KeyPath, str]]:
    excluded = (files.merged_content.get("sync") or {}).get("exclude") or []
    if not (folder / path).is_file():
        yield key, f"there is no file {path}, so it is not deployed"
    for number, pattern in enumerate(excluded):
        if fnmatch(path, str(pattern)):
            yield ("sync", "exclude", number), f"sync.exclude leaves out {path}, so it is not deployed"
