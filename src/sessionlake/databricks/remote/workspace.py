"""Connects to a Databricks workspace through the SDK, which finds host, profile and credentials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sessionlake import __version__
from sessionlake.errors import DatabricksWorkspaceError, MachineSetupError

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

# By default the SDK retries for five minutes when a host does not answer.
_RETRY_SECONDS = 30


@contextmanager
def open_workspace(profile: str | None) -> Iterator[WorkspaceClient]:
    """Opens a client of a workspace for a block. Errors of the SDK inside the block become `DatabricksWorkspaceError`.

    Args:
        profile: Profile in `~/.databrickscfg`. None follows the SDK's rules: first `DATABRICKS_HOST` and similar
            variables.

    Raises:
        MachineSetupError: The SDK is not installed.
        DatabricksWorkspaceError: No workspace is configured, it cannot be reached, or it rejects a request.
    """
    try:
        from databricks.sdk import WorkspaceClient
        from databricks.sdk.core import Config
        from databricks.sdk.errors import DatabricksError
    except ImportError as error:
        raise MachineSetupError(
            "the Databricks SDK is not installed", fix="Run `pip install 'sessionlake[remote]'`"
        ) from error
    from requests import RequestException

    try:
        config = Config(
            profile=profile, retry_timeout_seconds=_RETRY_SECONDS, product="sessionlake", product_version=__version__
        )
    except ValueError as error:
        raise DatabricksWorkspaceError(
            f"no Databricks workspace is configured ({error})",
            fix="Run `databricks auth login`, and name its profile with --profile or "
            "DATABRICKS_CONFIG_PROFILE. Or set DATABRICKS_HOST and DATABRICKS_TOKEN",
        ) from error
    try:
        yield WorkspaceClient(config=config)
    except DatabricksError as error:
        raise DatabricksWorkspaceError(
            f"the workspace {config.host} rejects the request: {error.error_code or type(error).__name__}: {error}",
            fix="Correct what this message names: the login of --profile, your rights in the workspace, "
            "or the command's arguments",
        ) from error
    except (RequestException, TimeoutError) as error:
        raise DatabricksWorkspaceError(
            f"the workspace {config.host} cannot be reached: {error}",
            fix="Check the address in the profile (--profile) or in DATABRICKS_HOST, and the network",
        ) from error
