"""The one configuration: a YAML file, validated once, every key overridable from the environment.

Precedence, highest first: `SESSIONLAKE_*` environment variables (`__` separates levels, as in
`SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS`), the YAML file, the defaults below.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    computed_field,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from sessionlake.errors import ConfigError
from sessionlake.protocol.columns import Column, parse_columns
from sessionlake.protocol.payload import Format

ENV_PREFIX = "SESSIONLAKE_"
CONFIG_VARIABLE = "SESSIONLAKE_CONFIG"
DEFAULT_FILE = "sessionlake.yml"
# Read by the process itself, not settings.
_OTHER_VARIABLES = {CONFIG_VARIABLE, "SESSIONLAKE_FAULT", "SESSIONLAKE_CACHE", "SESSIONLAKE_DEBUG"}

# Keys whose values no error text repeats.
_SECRET = {"options", "registry_auth", "registry_url"}

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]+)")
_UNIT_MS = {"millisecond": 1, "ms": 1, "second": 1000, "s": 1000, "minute": 60_000, "m": 60_000, "min": 60_000,
            "hour": 3_600_000, "h": 3_600_000, "day": 86_400_000, "d": 86_400_000, "week": 604_800_000}  # fmt: skip


def _duration(value: object) -> timedelta:
    """`10 minutes`, `1 hour`, `500 ms`: one number and one unit."""
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    unit = match["unit"] if match else ""
    factor = _UNIT_MS.get(unit) or _UNIT_MS.get(unit.removesuffix("s"))
    if match is None or factor is None:
        raise ValueError(
            "a duration is a number and a unit (ms, seconds, minutes, hours, days, weeks), as in '10 minutes'"
        )
    return timedelta(milliseconds=float(match["number"]) * factor)


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Regex = Annotated[str, AfterValidator(_regex)]


def milliseconds(duration: timedelta) -> int:
    """Whole milliseconds of a duration: the unit of every time in the protocol."""
    return duration // timedelta(milliseconds=1)


class Integrity(StrEnum):
    """How a session's stream is judged (PROTOCOL, "Stream integrity")."""

    NONE = "none"
    ONCE = "once"
    ORDER = "order"
    WINDOW = "window"
    STRICT = "strict"


class OnViolation(StrEnum):
    """What a violation does."""

    FAIL = "fail"
    ISOLATE = "isolate"
    RECORD = "record"


class OnTopicChange(StrEnum):
    """What bronze does about a topic that was deleted, created anew, or cut before it was read."""

    FAIL = "fail"
    FORGET = "forget"
    RESTART = "restart"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KafkaSettings(_Section):
    """Where the messages come from."""

    bootstrap_servers: str = Field("127.0.0.1:9092", min_length=1)
    topic_pattern: Regex = r"capture\..+"
    options: dict[str, str] = {}
    """Any further client option, without its `kafka.` prefix: `security.protocol: SASL_SSL`."""
    allow_offset_gaps: bool = False
    """True for compacted or transactional topics, whose offsets legitimately have holes."""
    on_topic_change: OnTopicChange = OnTopicChange.FAIL
    """For topics that are deleted, created anew, or cut by retention before they were read."""
    inactive_after: Duration = timedelta(days=7)
    """A topic without a message for so long leaves the subscription until one comes."""

    @field_validator("options", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        spelled = {True: "true", False: "false"}
        return {str(k).removeprefix("kafka."): spelled[v] if isinstance(v, bool) else str(v) for k, v in value.items()}


class TopicRule(_Section):
    """Overrides for the topics whose whole name matches `pattern`; the first matching rule wins."""

    pattern: Regex
    integrity: Integrity | None = None
    on_violation: OnViolation | None = None
    lateness: Duration | None = None


class PayloadSettings(_Section):
    """With what Avro and Protobuf messages are read; `protocol/payload.py` says what they carry."""

    schema_file: Path | None = None
    """The one schema: an Avro schema (.avsc), or a Protobuf descriptor set (`protoc --include_imports -o`)."""
    schema_files: dict[int, Path] = {}
    """Or a file for each schema id, for messages with a wire header."""
    message: str | None = Field(None, min_length=1)
    """Full name of the Protobuf message type; with a registry, each message says it itself."""
    registry_url: str | None = None
    registry_auth: SecretStr | None = None
    """`user:password`, or a bearer token."""
    wire_header: bool | None = None
    """Whether messages begin with a schema id, as they do with a registry; by default, unless `schema_file` is set."""

    @field_validator("registry_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "http://none")
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("an address as https://host:port, maybe with a path, is needed")
        if parts.username or parts.password:
            raise ValueError("user and password belong in registry_auth")
        return value and value.rstrip("/")

    @property
    def header(self) -> bool:
        """Whether messages begin with a wire header."""
        return self.schema_file is None if self.wire_header is None else self.wire_header


class CaptureSettings(_Section):
    """What the messages say and how strictly a session's stream is judged."""

    format: Format = Format.JSON
    payload: PayloadSettings = PayloadSettings()
    columns: dict[str, str] = {"price": "double", "qty": "bigint", "status": "string"}
    integrity: Integrity = Integrity.STRICT
    on_violation: OnViolation = OnViolation.FAIL
    by_topic: tuple[TopicRule, ...] = ()
    lateness: Duration = timedelta(minutes=10)
    gap_timeout: Duration = timedelta(minutes=10)
    session_timeout: Duration = timedelta(hours=1)
    max_future_skew: Duration = timedelta(days=1)
    max_message_bytes: int = Field(10 * 1024 * 1024, gt=0)
    max_held_messages: int = Field(10_000, ge=1)
    """Most messages that class `window` holds back of a session, and most bytes: one more is a violation."""
    max_held_bytes: int = Field(64 * 1024 * 1024, ge=1)
    max_gaps: int = Field(10_000, ge=0)
    """Most gaps between the seqs of a session, under `once` and `window`: one more is a violation."""

    @field_validator("columns")
    @classmethod
    def _declared(cls, value: dict[str, str]) -> dict[str, str]:
        parse_columns(value)
        return value

    @model_validator(mode="after")
    def _schemas_are_named(self) -> Self:
        wrong = _wrong_payload(self.format, self.payload)
        if wrong:
            raise ValueError(f"payload: {wrong}")
        return self

    @property
    def declared(self) -> tuple[Column, ...]:
        """The declared columns, parsed, in their configured order."""
        return parse_columns(self.columns)


def _wrong_payload(kind: Format, payload: PayloadSettings) -> str | None:
    """What about the payload's settings does not go together."""
    if kind is Format.JSON:
        return "is for format avro or protobuf; leave it out" if payload != PayloadSettings() else None
    sources = [name for name in ("schema_file", "schema_files", "registry_url") if getattr(payload, name)]
    found = " and ".join(sources) or "none"
    by_id = not payload.schema_file
    wrong = {
        f"format {kind} needs one of schema_file, schema_files and registry_url, found {found}": len(sources) != 1,
        f"{found} finds schemas by the id in the wire header: leave out wire_header": by_id and not payload.header,
        "message names a Protobuf type; leave it out": kind is Format.AVRO and bool(payload.message),
        "message must name the Protobuf type, as in my.package.Capture": kind is Format.PROTOBUF
        and not (payload.message or payload.registry_url),
        "registry_auth is of no use without registry_url": bool(payload.registry_auth and not payload.registry_url),
    }
    return next((text for text, applies in wrong.items() if applies), None)


class BronzeSettings(_Section):
    """Kafka to `bronze.messages`."""

    max_offsets_per_trigger: int = Field(1_000_000, gt=0)
    trigger: Duration = timedelta(seconds=1)
    topic_refresh: Duration = timedelta(seconds=3)
    """How soon a new topic or partition is noticed."""


class SilverSettings(_Section):
    """`bronze.messages` to session tables."""

    shards: int = Field(64, gt=0, le=65_536)
    trigger: Duration = timedelta(seconds=1)
    snapshot_interval: Duration = Field(timedelta(minutes=10), ge=timedelta(seconds=1))
    """In stream time: a session that changed is cut, as a whole table, at the next multiple of it."""
    max_files_per_trigger: int = Field(1000, gt=0)
    merge_interval: Duration = timedelta(seconds=5)
    """Least time between two MERGEs into `session_rows` and `sessions`; they take in all batches since."""


class GoldSettings(_Section):
    """Session changes to analytics."""

    trigger: Duration = timedelta(seconds=20)
    """A batch costs some CPU seconds whatever its size: at a quicker pace, gold would leave silver none."""
    rolling_points: int = Field(8, ge=1, le=1024)
    shards: int = Field(64, gt=0, le=65_536)


class PublishSettings(_Section):
    """A table's changes to Kafka."""

    trigger: Duration = timedelta(seconds=1)
    """Least time between two micro-batches."""


class ProcessorSettings(_Section):
    """One user-defined processor (see `sessionlake.processors`)."""

    model_config = ConfigDict(populate_by_name=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    target: str = Field(alias="class", min_length=1)
    """An entry point of the group `sessionlake.processors`, or `module:Class`."""
    topics: Regex = ".*"
    """Which of the captured topics it is given; matches whole names."""
    table: str | None = Field(None, pattern=r"^(silver|gold)\.[a-z][a-z0-9_]{0,127}$")
    """The output table; `silver.<name>` unless set."""
    options: dict[str, Any] = {}
    """Keyword arguments of the class."""
    on_error: OnViolation | None = None
    """What a failure of the class does; without it, what a violation does in the topic."""
    max_state_bytes: int = Field(1024 * 1024, gt=0)
    """Most bytes of one session's state."""
    max_records_per_call: int = Field(100_000, gt=0)
    """Most records and timers of one message or timer."""
    trigger: Duration = timedelta(seconds=1)

    @property
    def into(self) -> str:
        """The output table."""
        return self.table or f"silver.{self.name}"

    @property
    def layer(self) -> str:
        """What the ledger, the checkpoint and the streaming query call it."""
        return f"processor-{self.name}"


class SchemaSettings(_Section):
    """What the four schemas are called in the catalog (development targets put a prefix before them)."""

    bronze: str = Field("bronze", min_length=1)
    silver: str = Field("silver", min_length=1)
    gold: str = Field("gold", min_length=1)
    ops: str = Field("ops", min_length=1)

    def name_of(self, schema: str) -> str:
        """Catalog name of one of the four."""
        return str(getattr(self, schema))


class Settings(BaseSettings):
    """Everything a job is told. Frozen; inside the package its values are trusted."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=ENV_PREFIX, env_nested_delimiter="__")

    home: Path = Path(".sessionlake")
    catalog: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_\-]*$")
    """Unity Catalog name; on a laptop it stays empty and tables live in `home/warehouse`."""
    checkpoints: str | None = None
    """Folder or volume path of the checkpoints; `home/checkpoints` unless set."""
    kafka: KafkaSettings = KafkaSettings()
    capture: CaptureSettings = CaptureSettings()
    bronze: BronzeSettings = BronzeSettings()
    silver: SilverSettings = SilverSettings()
    gold: GoldSettings = GoldSettings()
    publish: PublishSettings = PublishSettings()
    schemas: SchemaSettings = SchemaSettings()
    processors: tuple[ProcessorSettings, ...] = ()

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
        for what in ("name", "into"):
            given = [getattr(processor, what) for processor in value]
            if twice := sorted({item for item in given if given.count(item) > 1}):
                raise ValueError(f"two processors have the {'name' if what == 'name' else 'table'} {', '.join(twice)}")
        return value

    @model_validator(mode="after")
    def _home_is_not_a_file(self) -> Self:
        if self.home.exists() and not self.home.is_dir():
            raise ValueError(f"home: {self.home} is a file, a folder is needed")
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def warehouse(self) -> Path:
        """Folder of the local tables: `warehouse/<schema>/<table>`."""
        return self.home / "warehouse"

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
    named = file or os.environ.get(CONFIG_VARIABLE)
    own = Path(os.environ.get(f"{ENV_PREFIX}HOME", "")) / DEFAULT_FILE
    path = Path(named) if named else own if own.is_file() else Path(DEFAULT_FILE)
    content = _read_yaml(path) if named or path.exists() else {}
    _refuse_unknown_variables()
    try:
        return Settings(**content)
    except ValidationError as error:
        raise ConfigError(_describe(error, path if content else None)) from None
    except SettingsError as error:
        raise ConfigError(f"the environment's settings cannot be read: {error}") from None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"config file {path}: {error.strerror}; name another with --config or {CONFIG_VARIABLE}"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} is not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"config file {path}: expected a mapping of keys at the top, found {type(content).__name__}")
    return content


def _refuse_unknown_variables() -> None:
    known = set(Settings.model_fields)
    for name in os.environ:
        if name.startswith(ENV_PREFIX) and name not in _OTHER_VARIABLES:
            section = name.removeprefix(ENV_PREFIX).lower().split("__")[0]
            if section not in known:
                raise ConfigError(
                    f"environment variable {name}: there is no key '{section}'; known: {', '.join(sorted(known))}"
                )


def _describe(error: ValidationError, path: Path | None) -> str:
    where = f"config file {path}" if path else "configuration"
    lines = [f"{where}: {len(list(error.errors()))} wrong"]
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"]) or "(whole)"
        text = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            text = f"no such key; known here: {', '.join(_known_keys(item['loc'][:-1]))}"
            lines.append(f"  {key}: {text}")
        elif isinstance(item["input"], dict) or _SECRET & set(item["loc"]):
            lines.append(f"  {key}: {text}")
        else:
            lines.append(f"  {key} = {item['input']!r}: {text}")
    return "\n".join(lines)


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


_LISTED = {"by_topic": TopicRule, "processors": ProcessorSettings}
