"""The whole configuration: a YAML file, validated once. Every key can be overridden by an environment variable.

If a key is set in several places, the first of these applies:

- `SESSIONLAKE_*` variables, where `__` separates levels, as in `SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS`
- the section of `SESSIONLAKE_TARGET` in the file
- the rest of the file
- the defaults below
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import ByteSize, Field, ValidationError, computed_field, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from sessionlake.errors import ConfigError
from sessionlake.protocol.columns import find_repeated_names
from sessionlake.settings.capture import CaptureSettings, PayloadSchemaSettings, TopicOverrideSettings
from sessionlake.settings.file import (
    SCOPE_VARIABLE,
    TARGET_VARIABLE,
    KeyPath,
    SettingsFile,
    YamlDocument,
    read_databricks_secret,
    read_settings,
    read_yaml_file,
)
from sessionlake.settings.gold import BATCH_BYTES, GoldSettings
from sessionlake.settings.gold_sources import require_declared_feeds_and_columns
from sessionlake.settings.kafka import (
    BronzeSettings,
    KafkaSecurity,
    KafkaSettings,
    MessageSourceKind,
    TopicChangePolicy,
)
from sessionlake.settings.known_keys import list_known_settings_keys
from sessionlake.settings.processors import ProcessorSettings, add_product_processors
from sessionlake.settings.section import Duration, SettingsSection, describe_unknown_settings_key
from sessionlake.settings.texts import describe_wrong_setting_value

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = [
    "CONFIG_VARIABLE",
    "DEFAULT_FILE",
    "ENV_PREFIX",
    "BronzeSettings",
    "CaptureSettings",
    "GoldSettings",
    "KafkaSecurity",
    "KafkaSettings",
    "MaintenanceSettings",
    "PayloadSchemaSettings",
    "ProcessorSettings",
    "PublishSettings",
    "RetentionSettings",
    "SchemaNameSettings",
    "Settings",
    "SilverSettings",
    "TopicChangePolicy",
    "TopicOverrideSettings",
    "load_settings",
]

ENV_PREFIX = "SESSIONLAKE_"
CONFIG_VARIABLE = "SESSIONLAKE_CONFIG"
PUBLICATIONS_VARIABLE = "SESSIONLAKE_PUBLICATIONS"
"""Environment variable with the tables that jobs may publish, as `table=topic,table=topic`. Deployments set it."""
DEFAULT_FILE = "sessionlake.yml"
DEFAULT_HOME = ".sessionlake"
# Environment variables that start like settings but are none.
PROCESS_VARIABLES = {CONFIG_VARIABLE, TARGET_VARIABLE, SCOPE_VARIABLE, PUBLICATIONS_VARIABLE}
PROCESS_VARIABLES |= {"SESSIONLAKE_FAULT", "SESSIONLAKE_CACHE", "SESSIONLAKE_DEBUG"}

# Keys whose values never appear in error texts.
_SECRET = {"options", "security", "registry_auth", "registry_url", "url", "token"}


class SilverSettings(SettingsSection):
    """Settings of silver, the layer that computes the tables of sessions from `bronze.messages`."""

    shards: int = Field(64, gt=0, le=65_536)
    """Number of parts in which sessions are judged in parallel. `sessionlake reshard` changes it."""
    trigger: Duration = timedelta(seconds=1)
    """Least time between the starts of two batches."""
    snapshot_interval: Duration = Field(timedelta(minutes=10), ge=timedelta(seconds=1))
    """At each multiple of this interval in stream time, a changed session gets a cut, where its table may be stored."""
    max_files_per_trigger: int = Field(1000, gt=0)
    """Most files of bronze per batch."""
    max_bytes_per_trigger: ByteSize = Field(BATCH_BYTES, gt=0)
    """Most bytes of bronze's files per batch; at least one file is read. Also applies to processors."""
    merge_interval: Duration = timedelta(seconds=5)
    """Least time between two MERGEs into `session_rows` and `sessions`. A MERGE applies all batches since the last one.
    """


class PublishSettings(SettingsSection):
    """Settings of publishing a table's changes to Kafka."""

    trigger: Duration = timedelta(seconds=1)
    """Least time between the starts of two batches."""
    max_bytes_per_trigger: ByteSize = Field(BATCH_BYTES, gt=0)
    """Most bytes of the change feed's files per batch; at least one version is read."""


_RETENTION = Field(None, ge=timedelta(hours=1))


class RetentionSettings(SettingsSection):
    """How long rows of each table are kept after their commit; None: forever. Rows still in use are kept longer."""

    bronze: Duration | None = _RETENTION
    """`bronze.messages`."""
    changes: Duration | None = _RETENTION
    """`silver.session_changes`. A session can then be read only as of its last stored table of that age, or later."""
    progress: Duration | None = _RETENTION
    """`silver.session_progress`."""
    snapshots: Duration | None = _RETENTION
    """`silver.session_snapshots` with its index, and `silver.session_cuts`."""
    quarantine: Duration | None = _RETENTION
    """`silver.quarantine`."""
    events: Duration | None = _RETENTION
    """`silver.integrity_events`."""
    ledger: Duration | None = _RETENTION
    """`ops.ledger`; its totals are kept. Must be at least as long as the limit of every other table here."""

    @model_validator(mode="after")
    def _require_ledger_kept_longest(self) -> Self:
        spans = {name: getattr(self, name) for name in type(self).model_fields if name != "ledger"}
        for name, span in spans.items():
            if self.ledger is not None and span is not None and span > self.ledger:
                raise ValueError(
                    f"ledger is shorter than {name}, but the ledger says how old rows are; keep it at least as long"
                )
        return self


class MaintenanceSettings(SettingsSection):
    """Settings of maintenance, which compacts small files and removes files, log entries and rows no longer needed."""

    interval: Duration = Field(timedelta(minutes=1), ge=timedelta(seconds=1))
    """How often each table is checked."""
    keep: Duration = Field(timedelta(hours=6), ge=timedelta(hours=1))
    """How long a file is kept after a commit removed it from its table. Queries that run may still read it."""
    versions: Duration = Field(timedelta(hours=1), ge=timedelta(minutes=10))
    """How long every version of a local table can be read; at most `keep`.

    Each commit within this time has a file in the table's log, and Spark lists all of these files in every batch.
    """
    retention: RetentionSettings = RetentionSettings()


class SchemaNameSettings(SettingsSection):
    """Names of the schemas in the catalog. Deployments for development add a prefix to them."""

    bronze: str = Field("bronze", min_length=1)
    """Name of the schema of bronze's tables."""
    silver: str = Field("silver", min_length=1)
    """Name of the schema of silver's tables."""
    gold: str = Field("gold", min_length=1)
    """Name of the schema of gold's tables."""
    ops: str = Field("ops", min_length=1)
    """Name of the schema of the ledger and other tables for operators."""
    reference: str = Field("reference", min_length=1)
    """Name of the schema of reference tables."""

    def get_configured_schema_name(self, schema: str) -> str:
        """Returns the configured name of one of the schemas `bronze`, `silver`, `gold`, `ops` and `reference`."""
        return str(getattr(self, schema))


class Settings(BaseSettings):
    """The whole validated configuration. It cannot be changed after it was read."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=ENV_PREFIX, env_nested_delimiter="__")

    home: Path = Path(DEFAULT_HOME)
    """Folder of everything that sessionlake writes on a laptop: tables, checkpoints, and the embedded broker's data."""
    catalog: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_\-]*$")
    """Unity Catalog name. None on a laptop, where tables are in `home/warehouse`."""
    checkpoints: str | None = None
    """Folder or volume path of the checkpoints. Default: `home/checkpoints`."""
    driver_memory: str = Field("2g", pattern=r"^[1-9]\d*[mg]$")
    """Largest heap of Spark on a laptop. A cluster has its own setting."""
    kafka: KafkaSettings = KafkaSettings()
    capture: CaptureSettings = CaptureSettings()
    bronze: BronzeSettings = BronzeSettings()
    silver: SilverSettings = SilverSettings()
    gold: GoldSettings = GoldSettings()
    publish: PublishSettings = PublishSettings()
    maintain: MaintenanceSettings = MaintenanceSettings()
    schemas: SchemaNameSettings = SchemaNameSettings()
    processors: tuple[ProcessorSettings, ...] = ()
    """The configured processors. After validation it also has those that maintain gold's products with a source."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Tells pydantic where to look for settings: first in the environment, then in the values from the file."""
        del settings_cls, dotenv_settings, file_secret_settings
        return env_settings, init_settings

    @field_validator("home")
    @classmethod
    def _make_home_absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("processors")
    @classmethod
    def _require_distinct_processors(cls, value: tuple[ProcessorSettings, ...]) -> tuple[ProcessorSettings, ...]:
        for own in value:
            if idle := own.model_fields_set & ({"topics", "max_state_bytes"} if own.key else {"source", "order"}):
                which = "without" if own.key else "with"
                raise ValueError(f"{own.name}: only a processor {which} a `key` can have {min(idle)}; leave it out")
        for what in ("name", "output_table"):
            if repeated := find_repeated_names(getattr(processor, what) for processor in value):
                called = "name" if what == "name" else "table"
                raise ValueError(f"two processors have the {called} {', '.join(repeated)}; change one")
        return value

    @model_validator(mode="after")
    def _add_product_processors(self) -> Self:
        # The settings are frozen; only validators complete them.
        object.__setattr__(self, "processors", add_product_processors(self.processors, self.gold))
        return self

    @model_validator(mode="after")
    def _derive_topic_pattern_from_feeds(self) -> Self:
        if self.capture.feeds and "topic_pattern" not in self.kafka.model_fields_set:
            topics = "|".join(f"(?:{feed.topics})" for feed in self.capture.feeds)
            object.__setattr__(self, "kafka", self.kafka.model_copy(update={"topic_pattern": topics}))
        return self

    @model_validator(mode="after")
    def _require_declared_sources(self) -> Self:
        require_declared_feeds_and_columns(self.gold, self.capture)
        return self

    @model_validator(mode="after")
    def _require_distinct_tables(self) -> Self:
        if repeated := find_repeated_names((*self.added_table_names, *self.capture.feed_view_names)):
            raise ValueError(
                "processors, gold's products and feeds share one set of names, and two of them have the "
                f"name {', '.join(repeated)}; rename one"
            )
        return self

    @model_validator(mode="after")
    def _require_home_is_no_file(self) -> Self:
        if self.home.exists() and not self.home.is_dir():
            raise ValueError(
                f"home: {self.home} is a file, but must be a folder; name another one with SESSIONLAKE_HOME"
            )
        return self

    @property
    def added_table_names(self) -> tuple[str, ...]:
        """Names, such as `gold.hourly`, of the tables of processors, products and references that are declared here."""
        gold = self.gold.added_table_names + self.gold.reference_table_names
        return tuple(processor.output_table for processor in self.processors) + gold

    @property
    def allows_offset_gaps(self) -> bool:
        """True if offsets may have gaps: if `kafka.allow_offset_gaps` is set, or if bronze reads archives.

        The completeness of archives is checked in another way.
        """
        return self.kafka.allow_offset_gaps or self.bronze.source is MessageSourceKind.ARCHIVE

    @computed_field  # type: ignore[prop-decorator]  # mypy supports none above property
    @property
    def warehouse(self) -> Path:
        """Folder of the local tables. Each table is at `<schema>/<table>` in it."""
        return self.home / "warehouse"

    @property
    def lake_location(self) -> str:
        """Where the tables are, as a text for users: the catalog, or the home folder."""
        return f"catalog {self.catalog}" if self.catalog else str(self.home)

    def checkpoint_path(self, name: str) -> str:
        """Returns the folder or volume path of a streaming query's checkpoint. `name` is the query's name."""
        return f"{self.checkpoints or self.home / 'checkpoints'}/{name}"


def load_settings(file: str | Path | None = None) -> Settings:
    """Reads and validates the configuration.

    Args:
        file: the YAML file. Default: the file that `SESSIONLAKE_CONFIG` names, or `sessionlake.yml` in
            `SESSIONLAKE_HOME` or in the working folder. Without any file, the default settings apply.

    Raises:
        ConfigError: a setting is wrong. The text has each wrong key with its value and the allowed values.
    """
    path = _find_settings_file(file)
    document = YamlDocument(Path(DEFAULT_FILE)) if path is None else read_yaml_file(path)
    _refuse_unknown_environment_variables()
    return validate_settings(read_settings(document, os.environ.get(TARGET_VARIABLE), read_databricks_secret))


def validate_settings(file: SettingsFile) -> Settings:
    """Returns the validated settings of a file. Environment variables override values of the file.

    Raises:
        ConfigError: a setting is wrong. The text has each wrong key with its value and the allowed values.
    """
    try:
        return Settings(**file.content)
    except ValidationError as error:
        wrong = [(file.find_line_of_key(item["loc"]), describe_settings_error(item, file)) for item in error.errors()]
        where = f"config file {file.document.path}" if file.content else "configuration"
        lines = [f"  line {line}: {text}" if line else f"  {text}" for line, text in wrong]
        many = "s" if len(wrong) > 1 else ""
        raise ConfigError("\n".join([f"{where} has {len(wrong)} wrong setting{many}:", *lines])) from None
    except SettingsError as error:
        raise ConfigError(
            f"the settings in environment variables cannot be read: {error}",
            fix='Write lists and mappings as JSON, as in SESSIONLAKE_KAFKA__OPTIONS=\'{"client.id": "lake"}\'',
        ) from None


def _find_settings_file(file: str | Path | None) -> Path | None:
    if named := file or os.environ.get(CONFIG_VARIABLE):
        if not Path(named).exists():
            raise ConfigError(
                f"the configuration file {named} does not exist",
                fix=f"Name another one with `--config` or {CONFIG_VARIABLE}",
            )
        return Path(named)
    own = Path(os.environ.get(f"{ENV_PREFIX}HOME", "")) / DEFAULT_FILE
    return next((path for path in (own, Path(DEFAULT_FILE)) if path.is_file()), None)


def find_settings_key_of_environment_variable(name: str) -> tuple[str, ...] | None:
    """Returns the key that an environment variable sets, as a tuple of its levels, whether the settings have it or not.

    Returns None if the variable has another prefix than `SESSIONLAKE_`, or is one that is not a setting.
    """
    if not name.startswith(ENV_PREFIX) or name in PROCESS_VARIABLES:
        return None
    return tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))


def _refuse_unknown_environment_variables() -> None:
    known = set(Settings.model_fields)
    for name in os.environ:
        key = find_settings_key_of_environment_variable(name)
        if key is not None and key[0] not in known:
            raise ConfigError(
                f"the environment variable {name} sets '{key[0]}', which is not a setting",
                fix=f"Use one of {', '.join(sorted(known))}",
            )


def describe_settings_error(error: ErrorDetails, file: SettingsFile) -> str:
    """Returns a text with the key of a wrong setting, what is wrong, and the value, unless that may be a secret.

    Args:
        error: The error that pydantic reports.
        file: The settings file, which says which values are secrets.
    """
    key, text = ".".join(str(part) for part in error["loc"]), describe_wrong_setting_value(error)
    if error["type"] == "extra_forbidden":
        known = list_known_settings_keys(Settings, error["loc"][:-1])
        return f"{key}: no such key{describe_unknown_settings_key(error['loc'][-1], known)}"
    if file.may_text_reveal_secret(error["loc"], text):
        return f"{key}: the value of the secret is not valid ({error['type']})"
    if (
        isinstance(error["input"], dict)
        or may_setting_be_secret(error["loc"])
        or file.contains_secret_at_key(error["loc"])
    ):
        return f"{key}: {text}" if key else text
    return f"{key} = {error['input']!r}: {text}"


def may_setting_be_secret(key: KeyPath) -> bool:
    """Returns True if the setting is of a kind that can have secrets, such as client options. Errors hide its value."""
    return not _SECRET.isdisjoint(key)
