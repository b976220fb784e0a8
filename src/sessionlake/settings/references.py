"""Reference tables, and the tables of gold in which changes are joined with them."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from sessionlake.protocol.names import check_columns
from sessionlake.settings.capture import Duration, Section

_PUBLISHED = ("valid_from", "valid_to", "_taken_by", "_gone_by")
_NAME = r"^[a-z][a-z0-9_]{0,62}$"
_KEY_TYPES = ("string", "boolean", "tinyint", "smallint", "int", "bigint")
_TYPES = (*_KEY_TYPES, "float", "double", "date", "timestamp")


class LookupSettings(Section):
    """Where the rows of a reference table are asked for when a change names a key that it has not."""

    url: str | None = Field(None, pattern=r"^https?://")
    """Is sent a POST with a JSON array of keys, and answers with a JSON array of rows."""
    python: str | None = Field(None, pattern=r"^[\w.]+:\w+$")
    """A `sessionlake.gold.references.lookup.Lookup` as `module:NAME`, in the place of a URL."""
    token: SecretStr | None = None
    """Sent as `Authorization: Bearer …`."""
    batch: int = Field(100, ge=1, le=10_000)
    """Most keys of one request."""
    in_flight: int = Field(4, ge=1, le=64)
    """Most requests at once."""
    timeout: Duration = Field(timedelta(seconds=10), gt=timedelta(0))
    """For each attempt: to connect, and between two pieces of the answer."""
    attempts: int = Field(3, ge=1, le=10)
    """Of one request; between them is a pause that doubles."""
    retry_after: Duration = Field(timedelta(minutes=1), gt=timedelta(0))
    """Until a key that failed is asked for again; doubled with each failure, at most a day."""
    ttl: Duration | None = Field(None, gt=timedelta(0))
    """How old what is known of a key becomes before it is asked for again; unless set, for good."""
    cache: int = Field(100_000, ge=1)
    """So many keys are remembered as asked for."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.url is None) == (self.python is None):
            raise ValueError("a lookup has a url, or names code in Python: python: module:NAME")
        return self


class ReferenceSettings(Section):
    """One slowly changing table, `reference.<name>`: a row for each key and each span of time (SCD type 2)."""

    name: str = Field(pattern=_NAME)
    """Names the table: `reference.<name>`."""
    keys: dict[str, str]
    """The columns that tell what a row is about, and their Spark SQL types."""
    columns: dict[str, str]
    """What it says of that, likewise."""
    lookup: LookupSettings | None = None

    @field_validator("keys", "columns")
    @classmethod
    def _typed(cls, value: dict[str, str]) -> dict[str, str]:
        if not value:
            raise ValueError("at least one column is needed, as in {site: string}")
        for name, sql in value.items():
            if sql not in _TYPES:
                raise ValueError(f"{name}: type {sql!r} is not one of {', '.join(_TYPES)}")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_columns((*self.keys, *self.columns), _PUBLISHED, f"a reference table, as {self.table},")
        if wrong := [name for name, sql in self.keys.items() if sql not in _KEY_TYPES]:
            raise ValueError(f"{', '.join(wrong)}: a key is one of {', '.join(_KEY_TYPES)}")
        return self

    @property
    def table(self) -> str:
        """Its two-level name."""
        return f"reference.{self.name}"

    @property
    def applied_table(self) -> str:
        """The table with what gold has taken of it."""
        return f"gold.reference_{self.name}"


class JoinSettings(Section):
    """One reference table that changes are joined with, as of their event time."""

    reference: str
    """The reference table, by its name in `gold.references`."""
    name: str | None = Field(None, pattern=_NAME)
    """Names the column `<name>_valid_from`; by default, the reference table's name."""
    keys: dict[str, str]
    """Each of the reference table's keys, and the column of a change that it is compared with."""
    take: dict[str, str] | None = None
    """The columns that are added, and the reference table's that they come from; by default all, under their names."""

    @field_validator("take")
    @classmethod
    def _named(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        check_columns(value or (), (), "the table")
        return value

    @property
    def called(self) -> str:
        """Its name."""
        return self.name or self.reference


class EnrichedSettings(Section):
    """One table of gold with a row for each change, and what reference tables said at its event time."""

    name: str = Field(pattern=_NAME)
    """Names the table: `gold.<name>`."""
    columns: tuple[str, ...] | None = None
    """Of the declared ones, those that it has; by default all. Those that are joined on are always there."""
    join: tuple[JoinSettings, ...] = Field(min_length=1)

    @property
    def table(self) -> str:
        """Its two-level name."""
        return f"gold.{self.name}"
