"""The keys of `databricks.yml` outside its resources, and those of a dashboard, in the form of `models.py`.

`databricks-bundles` has no models of these. They are the keys that the bundle reference of Databricks and the JSON of
exported dashboards have.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from sessionlake.databricks.bundle.models import ResourceModels, read_resource_models

ROOT, TARGET, DASHBOARD = "Root", "Target", "Dashboard"
WIDGET_VERSIONS = {
    "area": 3,
    "bar": 3,
    "counter": 2,
    "filter-date-picker": 2,
    "filter-date-range-picker": 2,
    "filter-multi-select": 2,
    "filter-single-select": 2,
    "filter-text-entry": 2,
    "heatmap": 3,
    "histogram": 3,
    "line": 3,
    "pie": 3,
    "pivot": 3,
    "scatter": 3,
    "table": 1,
}
"""The version of the specification that each type of widget needs."""
_SHARED: dict[str, Any] = {
    "bundle": "Bundle",
    "artifacts": {"*": "Artifact"},
    "permissions": ["RootPermission"],
    "presets": "Presets",
    "resources": "any",
    "run_as": "RunAs",
    "sync": "Sync",
    "workspace": "Workspace",
}
_TEXTS = dict.fromkeys  # keys of one type
_CLASSES: dict[str, dict[str, Any]] = {
    ROOT: _SHARED
    | {
        "bundle!": "Bundle",
        "experimental": "Experimental",
        "include": ["text"],
        "python": "Python",
        "scripts": {"*": "Script"},
        "targets": {"*": TARGET},
        "variables": {"*": "Variable"},
    },
    TARGET: _SHARED
    | {"cluster_id": "text", "default": "bool", "git": "Git", "mode": "TargetMode", "variables": {"*": "any"}},
    "Bundle": _TEXTS(("name", "cluster_id", "databricks_cli_version", "uuid"), "text")
    | {"deployment": "Deployment", "engine": "Engine", "git": "Git"},
    "Deployment": {"fail_on_active_runs": "bool", "lock": "Lock"},
    "Lock": {"enabled": "bool", "force": "bool"},
    "Git": {"branch": "text", "origin_url": "text"},
    "Artifact": _TEXTS(("build", "path"), "text")
    | {"dynamic_version": "bool", "executable": "Executable", "files": ["ArtifactFile"], "type": "ArtifactType"},
    "ArtifactFile": {"source!": "text"},
    "Experimental": _TEXTS(("immutable_folder", "python_wheel_wrapper", "record_deployment_history"), "bool")
    | _TEXTS(("skip_artifact_cleanup", "skip_name_prefix_for_schema", "use_legacy_run_as"), "bool")
    | {"python": "Python", "scripts": {"*": "text"}},
    "Presets": _TEXTS(("artifacts_dynamic_version", "pipelines_development", "source_linked_deployment"), "bool")
    | {"jobs_max_concurrent_runs": "int", "name_prefix": "text", "tags": {"*": "text"}}
    | {"trigger_pause_status": "PauseStatus"},
    "Python": {"mutators": ["text"], "resources": ["text"], "venv_path": "text"},
    "RunAs": _TEXTS(("group_name", "service_principal_name", "user_name"), "text"),
    "RootPermission": {"level!": "RootLevel"} | _TEXTS(("group_name", "service_principal_name", "user_name"), "text"),
    "Script": {"content!": "text", "env": {"*": "text"}},
    "Sync": {"exclude": ["text"], "include": ["text"], "paths": ["text"]},
    "Variable": {"default": "any", "description": "text", "lookup": "Lookup", "type": "VariableType"},
    "Lookup": _TEXTS(("alert", "cluster", "cluster_policy", "dashboard", "instance_pool", "job", "metastore"), "text")
    | _TEXTS(("notification_destination", "pipeline", "query", "service_principal", "warehouse"), "text"),
    "Workspace": _TEXTS(("account_id", "artifact_path", "auth_type", "file_path", "host", "profile"), "text")
    | _TEXTS(("resource_path", "root_path", "state_path", "workspace_id", "client_id"), "text")
    | _TEXTS(("azure_client_id", "azure_environment", "azure_login_app_id", "azure_tenant_id"), "text")
    | {"azure_workspace_resource_id": "text", "azure_use_msi": "bool", "google_service_account": "text"},
    DASHBOARD: {"datasets!": ["Dataset"], "pages!": ["Page"], "uiSettings": "any"},
    "Dataset": {"name!": "text", "displayName!": "text", "parameters": ["Parameter"], "columns": ["any"]}
    | {"query": "text", "queryLines": ["text"], "catalog": "text", "schema": "text"},
    "Parameter": {"displayName!": "text", "keyword!": "text", "dataType!": "DataType", "complexType": "text"}
    | {"defaultSelection": {"*": "any"}},
    "Page": {"name!": "text", "displayName!": "text", "layout": ["Placed"], "pageType": "PageType"}
    | {"layoutVersion": "text"},
    "Placed": {"widget!": "Widget", "position!": "Position"},
    "Position": _TEXTS(("x!", "y!", "width!", "height!"), "int"),
    "Widget": {"name!": "text", "queries": ["NamedQuery"], "spec": "Spec"}
    | {"textbox_spec": "text", "multilineTextboxSpec": {"*": "any"}},
    "NamedQuery": {"name!": "text", "query!": "WidgetQuery"},
    "WidgetQuery": {"datasetName!": "text", "fields": ["Field"], "filters": ["any"], "disaggregated": "bool"}
    | {"parameters": ["WidgetParameter"], "orders": ["any"]},
    "WidgetParameter": {"name!": "text", "keyword!": "text"},
    "Field": {"name!": "text", "expression!": "text"},
    "Spec": {"version!": "int", "widgetType!": "WidgetType", "encodings!": {"*": "any"}, "frame": "Frame"}
    | {"format": "any", "mark": "any", "selection": "any", "invisibleColumns": ["any"], "itemsPerPage": "int"}
    | {"allowHTMLByDefault": "bool", "paginationSize": "any", "condensed": "bool", "withRowNumber": "bool"},
    "Frame": {"showTitle": "bool", "title": "text", "showDescription": "bool", "description": "text"},
}
_ENUMS = {
    "ArtifactType": ["whl", "jar"],
    "DataType": ["STRING", "INTEGER", "DECIMAL", "DATE", "DATETIME", "BOOLEAN"],
    "Engine": ["terraform", "direct"],
    "Executable": ["bash", "sh", "cmd"],
    "PageType": ["PAGE_TYPE_CANVAS", "PAGE_TYPE_GLOBAL_FILTERS"],
    "RootLevel": ["CAN_VIEW", "CAN_RUN", "CAN_MANAGE"],
    "TargetMode": ["development", "production"],
    "VariableType": ["complex", "string"],
    "WidgetType": list(WIDGET_VERSIONS),
}


@cache
def read_models_of_all_bundle_files() -> ResourceModels:
    """Returns the allowed keys and values of resources, of `databricks.yml` and of dashboards."""
    resources = read_resource_models()
    return replace(resources, classes={**resources.classes, **_CLASSES}, enums={**resources.enums, **_ENUMS})
