"""A session leaves a catalog: bronze, silver, gold, a processor and what is published, while the layers run or not."""

from integration.test_forgetting import test_layers_that_run_stand_aside_and_go_on_without_the_session  # noqa: F401 - pytest runs what is imported again here
from spark.test_forgetting import (  # noqa: F401 - pytest runs what is imported again here
    settings,
    test_messages_are_in_no_file_though_the_platform_marks_what_changes,
    test_nothing_is_left_of_the_session_and_all_else_goes_on_as_it_was,
    test_rows_that_are_only_marked_as_gone_leave_their_files_though_the_session_has_no_others,
    test_the_books_lose_the_session_s_decisions_and_nothing_else,
    test_the_receipt_names_gold_s_tables_that_the_configuration_leaves_out,
)
from spark.test_forgetting_feeds import (  # noqa: F401 - pytest runs what is imported again here
    test_a_session_leaves_messages_of_others_who_keep_all_they_had,
)
