"""A processor's table in a catalog: made anew in one commit, and gone on from."""

from __future__ import annotations

from spark.test_processors import (  # noqa: F401 - pytest runs what is imported again here
    counted,
    test_a_new_class_is_shown_against_history_then_published_at_once_and_gone_on_from,
)
