"""Gold in a catalog: equal to a recomputation, and to itself after deaths between any two commits."""

from __future__ import annotations

from spark.test_gold import (  # noqa: F401 - pytest runs what is imported again here
    feed,
    test_a_figure_is_explained_down_to_its_offsets_and_says_of_a_message_whether_it_is_in_it,
    test_a_point_far_older_than_the_tail_refines_old_rows_alone,
    test_a_product_that_is_new_or_made_again_holds_all_that_gold_has_read,
    test_another_number_of_points_is_a_rebuild,
    test_batches_that_die_between_any_two_commits_and_are_replayed_count_once,
    test_random_points_in_random_batches_equal_a_recomputation,
)
