"""The one configuration: a YAML file, validated once, every key overridable from the environment.

Precedence, highest first: `SESSIONLAKE_*` environment variables (`__` separates levels, as in
`SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS`), the YAML file (the section of `SESSIONLAKE_TARGET` over the rest), the
defaults below.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from pydantic import (
    ByteSize,
    Field,
    ValidationError,
    computed_field,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from sessionlake.errors import ConfigError
from sessionlake.protocol.columns import repeated_names
from sessionlake.settings.capture import (
    CaptureSettings,
    Duration,
    Integrity,
    OnViolation,
    PayloadSettings,
    Section,
    TopicRule,
    milliseconds,
)
from sessionlake.settings.file import (
    SCOPE_VARIABLE,
    TARGET_VARIABLE,
    Document,
    SettingsFile,
    read_document,
    read_settings,
    secret_of_scope,
)
from sessionlake.settings.gold import BATCH_BYTES, GoldSettings, ProductSettings
from sessionlake.settings.kafka import (
    BronzeSettings,
    KafkaSecurity,
    KafkaSettings,
    OnTopicChange,
    SourceKind,
)
from sessionlake.settings.processors import ProcessorSettings, with_products
from sessionlake.settings.references import EnrichedSettings, JoinSettings, ReferenceSettings

__all__ = [
    "CONFIG_VARIABLE",
    "DEFAULT_FILE",
    "ENV_PREFIX",
    "BronzeSettings",
    "CaptureSettings",
    "Duration",
    "GoldSettings",
    "Integrity",
    "KafkaSecurity",
    "KafkaSettings",
    "MaintainSettings",
    "OnTopicChange",
    "OnViolation",
    "PayloadSettings",
    "ProcessorSettings",
    "PublishSettings",
    "RetentionSettings",
    "SchemaSettings",
    "Settings",
    "SilverSettings",
    "TopicRule",
    "load_settings",
    "milliseconds",
]

ENV_PREFIX = "SESSIONLAKE_"
CONFIG_VARIABLE = "SESSIONLAKE_CONFIG"
PUBLICATIONS_VARIABLE = "SESSIONLAKE_PUBLICATIONS"
"""What jobs may publish, as `table=topic,table=topic`: a deployment says so, and no command line can."""
DEFAULT_FILE = "sessionlake.yml"
# Read by the process itself, not settings.
_OTHER_VARIABLES = {CONFIG_VARIABLE, TARGET_VARIABLE, SCOPE_VARIABLE, PUBLICATIONS_VARIABLE}
_OTHER_VARIABLES |= {"SESSIONLAKE_FAULT", "SESSIONLAKE_CACHE", "SESSIONLAKE_DEBUG"}

# Keys whose values no error text repeats.
_SECRET = {"options", "security", "registry_auth", "registry_url", "url", "token"}


class SilverSettings(Section):
    """`bronze.messages` to session tables."""

    shards: int = Field(64, gt=0, le=65_536)
    """In how many parts sessions are judged at once. `sessionlake reshard` changes it."""
    trigger: Duration = timedelta(seconds=1)
    """How long after the start of a batch the next one starts."""
    snapshot_interval: Duration = Field(timedelta(minutes=10), ge=timedelta(seconds=1))
    """In stream time: a session that changed is cut, as a whole table, at the next multiple of it."""
    max_files_per_trigger: int = Field(1000, gt=0)
    """Most files of bronze that a batch reads."""
    max_bytes_per_trigger: ByteSize = Field(BATCH_BYTES, gt=0)
    """Of bronze's files, as they are stored: about what a batch takes in, and one file at least; processors, too."""
    merge_interval: Duration = timedelta(seconds=5)
    """Least time between two MERGEs into `session_rows` and `sessions`; they take in all batches since."""


class PublishSettings(Section):
    """A table's changes to Kafka."""

    trigger: Duration = timedelta(seconds=1)
    """Least time between two micro-batches."""
    max_bytes_per_trigger: ByteSize = Field(BATCH_BYTES, gt=0)
    """Of files of the change feed, as they are stored: about what a batch sends, and one version at least."""


_RETENTION = Field(None, ge=timedelta(hours=1))


class RetentionSettings(Section):
    """How long rows stay, from their commit on; without one, for good. What is still needed stays longer."""

    bronze: Duration | None = _RETENTION
    """`bronze.messages`."""
    changes: Duration | None = _RETENTION
    """`silver.session_changes`: moments of a session before its last whole table that is so old cannot be told then."""
    progress: Duration | None = _RETENTION
    """`silver.session_progress`."""
    snapshots: Duration | None = _RETENTION
    """`silver.session_snapshots` with its index, and `silver.session_cuts`."""
    quarantine: Duration | None = _RETENTION
    """`silver.quarantine`."""
    events: Duration | None = _RETENTION
    """`silver.integrity_events`."""
    ledger: Duration | None = _RETENTION
    """`ops.ledger`, whose sums stay: at least as long as anything else that does not stay for good."""

    @model_validator(mode="after")
    def _ledger_is_longest(self) -> Self:
        spans = {name: getattr(self, name) for name in type(self).model_fields if name != "ledger"}
        for name, span in spans.items():
            if self.ledger is not None and span is not None and span > self.ledger:
                raise ValueError(
                    f"ledger is shorter than {name}: the ledger says how old that is, and must stay as long"
                )
        return self


class MaintainSettings(Section):
    """Files merged, and files, log entries and rows that nobody needs removed."""

    interval: Duration = Field(timedelta(minutes=1), ge=timedelta(seconds=1))
    """In which each table is looked at once."""
    keep: Duration = Field(timedelta(hours=6), ge=timedelta(hours=1))
    """How long a file that is no part of its table any more stays: a query that has begun may yet read it."""
    versions: Duration = Field(timedelta(hours=1), ge=timedelta(minutes=10))
    """How far back, in a home, every version of a table can be read; not further than `keep`.

    All that time each commit has a file in the table's log, and Spark looks at all of these with every batch.
    """
    retention: RetentionSettings = RetentionSettings()


class SchemaSettings(Section):
    """What the schemas are called in the catalog (development targets put a prefix before them)."""

    bronze: str = Field("bronze", min_length=1)
    """Name of the schema of bronze's tables."""
    silver: str = Field("silver", min_length=1)
    """Name of the schema of silver's tables."""
    gold: str = Field("gold", min_length=1)
    """Name of the schema of gold's tables."""
    ops: str = Field("ops", min_length=1)
    """Name of the schema of the ledger and all else that operators read."""
    reference: str = Field("reference", min_length=1)
    """Name of the schema of reference tables."""

    def name_of(self, schema: str) -> str:
        """Catalog name of one of them."""
        return str(getattr(self, schema))


class Settings(BaseSettings):
    """Everything a job is told. Frozen; inside the package its values are trusted."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=ENV_PREFIX, env_nested_delimiter="__")

    home: Path = Path(".sessionlake")
    """Folder of everything that sessionlake writes on a laptop: tables, checkpoints, the embedded broker's data."""
    catalog: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_\-]*$")
    """Unity Catalog name; on a laptop it stays empty and tables live in `home/warehouse`."""
    checkpoints: str | None = None
    """Folder or volume path of the checkpoints; `home/checkpoints` unless set."""
    driver_memory: str = Field("2g", pattern=r"^[1-9]\d*[mg]$")
    """The most that the heap of a laptop's Spark takes; a cluster has its own setting."""
    kafka: KafkaSettings = KafkaSettings()
    capture: CaptureSettings = CaptureSettings()
    bronze: BronzeSettings = BronzeSettings()
    silver: SilverSettings = SilverSettings()
    gold: GoldSettings = GoldSettings()
    publish: PublishSettings = PublishSettings()
    maintain: MaintainSettings = MaintainSettings()
    schemas: SchemaSettings = SchemaSettings()
    processors: tuple[ProcessorSettings, ...] = ()
    """Those that are configured; once validated, also what products of gold that name a source are run as."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment over file: the file arrives as the initial values."""
        del settings_cls, dotenv_settings, file_secret_settings
        return env_settings, init_settings

    @field_validator("home")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("processors")
    @classmethod
    def _apart(cls, value: tuple[ProcessorSettings, ...]) -> tuple[ProcessorSettings, ...]:
        for own in value:
            if idle := own.model_fields_set & ({"topics", "max_state_bytes"} if own.key else {"source", "order"}):
                raise ValueError(f"{own.name}: {min(idle)} is for processors with{'out' if own.key else ''} a key")
        for what in ("name", "into"):
            if repeated := repeated_names(getattr(processor, what) for processor in value):
                called = "name" if what == "name" else "table"
                raise ValueError(f"two processors have the {called} {', '.join(repeated)}")
        return value

    @model_validator(mode="after")
    def _products_of_tables_are_run(self) -> Self:
        # It is frozen, and this is the one place that completes it.
        object.__setattr__(self, "processors", with_products(self.processors, self.gold))
        return self

    @model_validator(mode="after")
    def _tables_are_apart(self) -> Self:
        if repeated := repeated_names(self.own_tables):
            raise ValueError(f"a processor and a product of gold have the table {', '.join(repeated)}")
        return self

    @model_validator(mode="after")
    def _home_is_not_a_file(self) -> Self:
        if self.home.exists() and not self.home.is_dir():
            raise ValueError(f"home: {self.home} is a file, a folder is needed")
        return self

    @property
    def own_tables(self) -> tuple[str, ...]:
        """The tables that this configuration adds to those of every lake."""
        gold = self.gold.own_tables + self.gold.reference_tables
        return tuple(processor.into for processor in self.processors) + gold

    @property
    def allows_offset_gaps(self) -> bool:
        """Whether offsets have holes by right: archives are whole by their members' own checks."""
        return self.kafka.allow_offset_gaps or self.bronze.source is SourceKind.ARCHIVE

    @computed_field  # type: ignore[prop-decorator]  # mypy supports none above property
    @property
    def warehouse(self) -> Path:
        """Folder of the local tables: `warehouse/<schema>/<table>`."""
        return self.home / "warehouse"

    @property
    def place(self) -> str:
        """Where the tables are, for people."""
        return f"catalog {self.catalog}" if self.catalog else str(self.home)

    def checkpoint(self, name: str) -> str:
        """Checkpoint location of a streaming query."""
        return f"{self.checkpoints or self.home / 'checkpoints'}/{name}"


def load_settings(file: str | Path | None = None) -> Settings:
    """Reads and validates the configuration.

    Args:
        file: the YAML file; without it `SESSIONLAKE_CONFIG`, else `sessionlake.yml` in `SESSIONLAKE_HOME`, else here,
            else the defaults.

    Raises:
        ConfigError: naming each wrong key, its value and what is allowed.
    """
    path = _path(file)
    document = Document(Path(DEFAULT_FILE)) if path is None else read_document(path)
    _refuse_unknown_variables()
    return settings_of(read_settings(document, os.environ.get(TARGET_VARIABLE), secret_of_scope))


def settings_of(file: SettingsFile) -> Settings:
    """Validates what a file says, under what the environment says.

    Raises:
        ConfigError: as `load_settings`.
    """
    try:
        return Settings(**file.content)
    except ValidationError as error:
        wrong = _wrong(error, file)
        where = f"config file {file.document.path}" if file.content else "configuration"
        lines = [f"  line {line}: {text}" if line else f"  {text}" for line, text in wrong]
        raise ConfigError("\n".join([f"{where}: {len(wrong)} wrong", *lines])) from None
    except SettingsError as error:
        raise ConfigError(f"the environment's settings cannot be read: {error}") from None


def wrong_settings(file: SettingsFile) -> list[tuple[int | None, str]]:
    """Everything that is wrong in a file: the line that says it, and what."""
    try:
        Settings(**file.content)
    except ValidationError as error:
        return _wrong(error, file)
    return []


def _path(file: str | Path | None) -> Path | None:
    if named := file or os.environ.get(CONFIG_VARIABLE):
        if not Path(named).exists():
            raise ConfigError(f"config file {named}: there is none; name another with --config or {CONFIG_VARIABLE}")
        return Path(named)
    own = Path(os.environ.get(f"{ENV_PREFIX}HOME", "")) / DEFAULT_FILE
    return next((path for path in (own, Path(DEFAULT_FILE)) if path.is_file()), None)


def _refuse_unknown_variables() -> None:
    known = set(Settings.model_fields)
    for name in os.environ:
        if name.startswith(ENV_PREFIX) and name not in _OTHER_VARIABLES:
            section = name.removeprefix(ENV_PREFIX).lower().split("__")[0]
            if section not in known:
                raise ConfigError(
                    f"environment variable {name}: there is no key '{section}'; known: {', '.join(sorted(known))}"
                )


def _wrong(error: ValidationError, file: SettingsFile) -> list[tuple[int | None, str]]:
    found = []
    for item in error.errors():
        key, text = ".".join(str(part) for part in item["loc"]) or "(whole)", item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            text = f"{key}: no such key; known here: {', '.join(_known_keys(item['loc'][:-1]))}"
        elif file.repeats_secret(item["loc"], text):
            text = f"{key}: what a secret holds is refused ({item['type']})"
        elif isinstance(item["input"], dict) or _SECRET & set(item["loc"]) or file.is_secret(item["loc"]):
            text = f"{key}: {text}"
        else:
            text = f"{key} = {item['input']!r}: {text}"
        found.append((file.line(item["loc"]), text))
    return found


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    model: Any = Settings
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        model = _LISTED.get(str(part)) or (field.annotation if field else None)
        if model is None:
            return []
    return sorted(field.alias or name for name, field in model.model_fields.items())


_LISTED = {
    "security": KafkaSecurity,
    "by_topic": TopicRule,
    "processors": ProcessorSettings,
    "products": ProductSettings,
    "references": ReferenceSettings,
    "enriched": EnrichedSettings,
    "join": JoinSettings,
}
