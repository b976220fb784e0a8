"""Checks references `${…}` and variables: each reference must lead to something, each variable be declared and used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sessionlake.databricks.bundle.files import (
    REFERENCE,
    BundleFiles,
    FileFault,
    YamlMapping,
    iterate_nested_texts,
    list_resources,
)
from sessionlake.databricks.bundle.models import suggest_similar_name
from sessionlake.databricks.bundle.root_models import read_models_of_all_bundle_files

_PARTS = 3
"""A reference to a resource begins with its kind, its key and a field."""
_ROOMS = ("var", "resources", "bundle", "workspace")
_MALFORMED = re.compile(
    r"\$\{(?![\w.\[\]-]+\})[^}\n]*\}?|(?<!\$)\{(?:var|resources|bundle|workspace)\.[\w.]+\}|\$(?:var|resources)\.\w+"
)
_GIVEN = {"id", "url", "modified_status"}
"""What a workspace gives to every resource."""
_GIVEN_TO = {
    "schemas": {"full_name", "schema_id"},
    "sql_warehouses": {"jdbc_url", "odbc_params", "num_clusters", "state"},
    "volumes": {"volume_path", "volume_id"},
    "dashboards": {"dashboard_id", "path", "etag"},
}
_BUNDLE = {
    "name",
    "target",
    "environment",
    "uuid",
    "git.branch",
    "git.commit",
    "git.origin_url",
    "databricks_cli_version",
}
_USER = {"userName", "short_name", "domain_friendly_name", "displayName", "id"}


def find_reference_faults(files: BundleFiles) -> Iterator[FileFault]:
    """Yields the faults of all references and variables in a bundle's files."""
    declared = files.merged_content.get("variables") or {}
    for document in files.documents.values():
        for key, text in iterate_nested_texts(document.content):
            for path in REFERENCE.findall(text):
                wrong = _explain_dangling_reference(files, declared, path)
                wrong = wrong or _explain_complex_reference(declared, path, text)
                if wrong:
                    fault = files.create_fault(f"${{{path}}}{wrong}", *key)
                    yield replace(fault, line=fault.line + _count_lines_below_key(text, f"${{{path}}}"))
            if "description" not in key[-1:]:
                for broken in _MALFORMED.findall(text):
                    yield files.create_fault(f"{broken!r} is no reference. Write ${{var.name}}", *key)
    yield from _find_variable_faults(files, declared)


def find_unused_variables(files: BundleFiles) -> Iterator[FileFault]:
    """Yields a fault for each variable to which no reference leads."""
    texts = (text for document in files.documents.values() for _, text in iterate_nested_texts(document.content))
    used = {path.split(".")[1] for text in texts for path in REFERENCE.findall(text) if path.startswith("var.")}
    for name in (files.merged_content.get("variables") or {}).keys() - used - DEPLOYMENT_VARIABLES:
        yield files.create_fault(f"variable {name} is not used", "variables", name)


def _count_lines_below_key(text: str, part: str) -> int:
    """Returns how many lines below its YAML key a part of the key's text is.

    Returns 0 for a text of one line, which is on the key's own line. A longer text begins on the line below the key.
    """
    return text[: text.index(part)].count("\n") + 1 if "\n" in text.strip("\n") else 0


def look_up_variable_default(
    files: BundleFiles, node: Any, key: tuple[str | int, ...]
) -> tuple[Any, tuple[str | int, ...]]:
    """Returns the value and the path of keys of a variable's default, if the value is a reference to a variable.

    Any other value is returned unchanged, with its own path.

    Args:
        files: The bundle's files.
        node: The value.
        key: Path of keys to the value.
    """
    reference = REFERENCE.fullmatch(node) if isinstance(node, str) else None
    if reference is None or not reference[1].startswith("var."):
        return node, key
    variable = reference[1].removeprefix("var.")
    found = (files.merged_content.get("variables", {}).get(variable) or {}).get("default")
    return found, ("variables", variable, "default")


def _find_variable_faults(files: BundleFiles, declared: YamlMapping) -> Iterator[FileFault]:
    for name, own in declared.items():
        spec = own if isinstance(own, dict) else {}
        if not spec.get("description"):
            yield files.create_fault(f"variable {name} has no description", "variables", name)
        for place, value in _list_values_of_variable(files, name) if name in DEPLOYMENT_VARIABLES else ():
            if str(value).lower() not in {"true", "false"}:
                yield files.create_fault(f"variable {name} must be true or false, found {value!r}", *place)
        if "default" in spec and "lookup" in spec:
            yield files.create_fault(f"variable {name} has a default and a lookup", "variables", name)
        is_complex = isinstance(spec.get("default"), dict | list)
        if is_complex and spec.get("type") != "complex":
            text = f"variable {name} has a mapping or a list as its default, so it needs type: complex"
            yield files.create_fault(text, "variables", name, "type")
        is_text = isinstance(spec.get("default"), str | int | float)
        if spec.get("type") == "complex" and is_text and not REFERENCE.fullmatch(str(spec["default"])):
            text = f"variable {name} is complex, but its default is {spec['default']!r}"
            yield files.create_fault(text, "variables", name, "default")
    for name, target in files.targets.items():
        for variable in (target.get("variables") or {}).keys() - declared.keys():
            text = f"target {name}: there is no variable {variable}{suggest_similar_name(variable, list(declared))}"
            yield files.create_fault(text, "targets", name, "variables", variable)


def _list_values_of_variable(files: BundleFiles, name: str) -> list[tuple[tuple[str, ...], Any]]:
    """Returns the values that a bundle gives to a variable, by default and in targets, each with its path of keys."""
    own = (files.merged_content.get("variables") or {})[name] or {}
    found: list[tuple[tuple[str, ...], Any]] = [(("variables", name, "default"), own.get("default", "false"))]
    for target, content in files.targets.items():
        if name in (content.get("variables") or {}):
            found.append((("targets", target, "variables", name), content["variables"][name]))
    return found


DEPLOYMENT_VARIABLES = {"start"}
"""Variables that only the functions of `sessionlake.databricks.deploy` read."""


def _explain_complex_reference(declared: YamlMapping, path: str, text: str) -> str | None:
    """Returns what is wrong if a text contains a variable of type complex as a part; None otherwise.

    Args:
        declared: The variables of the bundle, by name.
        path: The reference, such as `var.catalog`.
        text: The text with the reference.
    """
    room, _, name = path.partition(".")
    is_part = REFERENCE.fullmatch(text) is None
    if room == "var" and is_part and (declared.get(name) or {}).get("type") == "complex":
        return " is a variable of type complex, which cannot be a part of a text"
    return None


def _explain_dangling_reference(files: BundleFiles, declared: YamlMapping, path: str) -> str | None:
    room, _, rest = path.partition(".")
    if room == "var":
        name = rest.partition(".")[0]
        return None if name in declared else f": there is no such variable{suggest_similar_name(name, list(declared))}"
    if room == "resources":
        return _explain_dangling_resource(files, rest)
    if room == "bundle":
        return None if rest in _BUNDLE else f": the bundle has no {rest!r}{suggest_similar_name(rest, sorted(_BUNDLE))}"
    if room == "workspace":
        known = {
            *read_models_of_all_bundle_files().map_keys_to_types("Workspace"),
            *(f"current_user.{own}" for own in _USER),
        }
        return None if rest in known else f": the workspace has no {rest!r}{suggest_similar_name(rest, sorted(known))}"
    return f" must begin with {', '.join(_ROOMS[:-1])} or {_ROOMS[-1]}"


def _explain_dangling_resource(files: BundleFiles, rest: str) -> str | None:
    kind, key, field = [*rest.split("."), "", ""][:_PARTS]
    known = [f"{own}.{name}" for own, name, _ in list_resources(files.merged_content)]
    if f"{kind}.{key}" not in known:
        return f": there is no such resource{suggest_similar_name(f'{kind}.{key}', known)}"
    models = read_models_of_all_bundle_files()
    if not field:
        return ": name a field of the resource, such as id or name"
    allowed = {
        *(models.map_keys_to_types(models.kinds[kind]) if kind in models.kinds else ()),
        *_GIVEN,
        *_GIVEN_TO.get(kind, ()),
    }
    return (
        None if field in allowed else f": {kind} have no field {field!r}{suggest_similar_name(field, sorted(allowed))}"
    )
