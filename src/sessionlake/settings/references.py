"""Settings of reference tables, and of the enriched tables that join them."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from sessionlake.protocol.columns import is_decimal_type
from sessionlake.protocol.names import require_allowed_column_names
from sessionlake.settings.section import Duration, Section

_RESERVED_COLUMNS = ("valid_from", "valid_to", "_taken_by", "_gone_by")
_NAME = r"^[a-z][a-z0-9_]{0,62}$"
_LOOKUP_KEY_TYPES = ("string", "boolean", "tinyint", "smallint", "int", "bigint")
_KEY_TYPES = (*_LOOKUP_KEY_TYPES, "date", "decimal(p,s)")
_TYPES = (*_KEY_TYPES, "float", "double", "timestamp", "timestamp_ntz")


class LookupSettings(Section):
    """A service or Python code from which gold fetches rows of a reference table for keys that the table lacks."""

    url: str | None = Field(None, pattern=r"^https?://")
    """Receives a POST with a JSON array of keys, and answers with a JSON array of rows."""
    python: str | None = Field(None, pattern=r"^[\w.]+:\w+$")
    """A `sessionlake.gold.references.lookup.Lookup` as `module:NAME`, instead of a URL."""
    token: SecretStr | None = None
    """Sent as `Authorization: Bearer …`."""
    batch: int = Field(100, ge=1, le=10_000)
    """Most keys per request."""
    in_flight: int = Field(4, ge=1, le=64)
    """Most requests at the same time."""
    timeout: Duration = Field(timedelta(seconds=10), gt=timedelta(0))
    """Timeout of each attempt: to connect, and between two parts of the answer."""
    attempts: int = Field(3, ge=1, le=10)
    """Most attempts per request. The pause between two attempts doubles each time."""
    retry_after: Duration = Field(timedelta(minutes=1), gt=timedelta(0))
    """Pause before a failed key is requested again. It doubles with each failure, up to a day."""
    ttl: Duration | None = Field(None, gt=timedelta(0))
    """Age at which a key's rows are requested again. None: never."""
    cache: int = Field(100_000, ge=1)
    """Most keys that are remembered as requested."""

    @model_validator(mode="after")
    def _require_one_source(self) -> Self:
        if (self.url is None) == (self.python is None):
            raise ValueError("a lookup needs exactly one of `url` and `python: module:NAME`")
        return self


class ReferenceSettings(Section):
    """A reference table, `reference.<name>`, with one row per key and span of time (SCD type 2). Users write it."""

    name: str = Field(pattern=_NAME)
    """Names the table: `reference.<name>`."""
    keys: dict[str, str]
    """The key columns and their Spark SQL types."""
    columns: dict[str, str]
    """The value columns and their Spark SQL types."""
    lookup: LookupSettings | None = None

    @field_validator("keys", "columns")
    @classmethod
    def _require_known_types(cls, value: dict[str, str]) -> dict[str, str]:
        if not value:
            raise ValueError("columns is empty; name at least one column, as in {site: string}")
        for name, sql in value.items():
            if not _is_type_allowed(sql, _TYPES):
                raise ValueError(f"{name}: there is no type {sql!r}; the types are {', '.join(_TYPES)}")
        return value

    @model_validator(mode="after")
    def _require_consistent_settings(self) -> Self:
        require_allowed_column_names(
            (*self.keys, *self.columns), _RESERVED_COLUMNS, f"a reference table, as {self.table},"
        )
        if wrong := [name for name, sql in self.keys.items() if not _is_type_allowed(sql, _KEY_TYPES)]:
            raise ValueError(f"{', '.join(wrong)}: a key cannot be of this type; use one of {', '.join(_KEY_TYPES)}")
        if self.lookup and (wrong := [name for name, sql in self.keys.items() if sql not in _LOOKUP_KEY_TYPES]):
            raise ValueError(
                f"lookup: keys are sent as JSON, which has no type {self.keys[wrong[0]]}; give the key "
                f"{wrong[0]} one of the types {', '.join(_LOOKUP_KEY_TYPES)}"
            )
        return self

    @property
    def table(self) -> str:
        """The table's name with schema, `reference.<name>`."""
        return f"reference.{self.name}"

    @property
    def applied_table_name(self) -> str:
        """Name of gold's copy of the table, `gold.reference_<name>`, which has the rows that gold has already used."""
        return f"gold.reference_{self.name}"


def _is_type_allowed(sql: str, types: tuple[str, ...]) -> bool:
    return ("decimal(p,s)" if is_decimal_type(sql) else sql) in types


class JoinSettings(Section):
    """A join of changes with a reference table: each change gets the row that is valid at its event time."""

    reference: str
    """The reference table, by its name in `gold.references`."""
    name: str | None = Field(None, pattern=_NAME)
    """Prefix of the column `<name>_valid_from`. Default: the reference table's name."""
    keys: dict[str, str]
    """For each key of the reference table, the column of a change that it is compared with."""
    take: dict[str, str] | None = None
    """The added columns, and the columns of the reference table that they come from. Default: all, with their names."""

    @field_validator("take")
    @classmethod
    def _require_usable_names(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        require_allowed_column_names(value or (), (), "the table")
        return value

    @property
    def version_prefix(self) -> str:
        """Prefix of the column `<name>_valid_from`, which shows the version of the joined row."""
        return self.name or self.reference


class EnrichedSettings(Section):
    """A table of gold with one row per change, joined with the rows of reference tables valid at its event time."""

    name: str = Field(pattern=_NAME)
    """Names the table: `gold.<name>`."""
    columns: tuple[str, ...] | None = None
    """The declared columns that the table has; default: all. Columns that are joined on are always included."""
    join: tuple[JoinSettings, ...] = Field(min_length=1)

    @property
    def table(self) -> str:
        """The table's name with schema, `gold.<name>`."""
        return f"gold.{self.name}"
