"""A Databricks workspace, asked through the SDK: host, profile and credentials are the SDK's own configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sessionlake import __version__
from sessionlake.errors import MachineError, RemoteError

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

# Unless told, the SDK asks for five minutes whether a host is there that is not.
_RETRY_SECONDS = 30


@contextmanager
def workspace(profile: str | None) -> Iterator[WorkspaceClient]:
    """A client of the workspace; what goes wrong with it inside the block is told in one text.

    Args:
        profile: of `~/.databrickscfg`; without one the SDK's rules say, `DATABRICKS_HOST` and its siblings first.

    Raises:
        MachineError: the SDK is not installed.
        RemoteError: nothing says which workspace, it cannot be reached, or it refuses what it is asked.
    """
    try:
        from databricks.sdk import WorkspaceClient
        from databricks.sdk.core import Config
        from databricks.sdk.errors import DatabricksError
    except ImportError as error:
        raise MachineError(
            "the Databricks SDK is not installed: pip install 'sessionlake[remote]', on a laptop beside what is there"
        ) from error
    from requests import RequestException

    try:
        config = Config(
            profile=profile, retry_timeout_seconds=_RETRY_SECONDS, product="sessionlake", product_version=__version__
        )
    except ValueError as error:
        raise RemoteError(
            f"no Databricks workspace is configured ({error}): `databricks auth login`, then name its profile with "
            "--profile or DATABRICKS_CONFIG_PROFILE; or set DATABRICKS_HOST and DATABRICKS_TOKEN"
        ) from error
    try:
        yield WorkspaceClient(config=config)
    except DatabricksError as error:
        raise RemoteError(f"{config.host} refuses: {error.error_code or type(error).__name__}: {error}") from error
    except (RequestException, TimeoutError) as error:
        raise RemoteError(f"{config.host} cannot be reached: {error}; check host and network") from error
