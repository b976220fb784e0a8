"""Comments of columns in a catalog."""

from __future__ import annotations

from spark.test_column_comments import (  # noqa: F401 - pytest runs what is imported again here
    test_a_column_that_is_added_has_its_comment,
    test_sql_shows_the_comment_of_every_column,
)
