"""Errors of libraries, worded on one line."""

from domainwise.core.errors import one_line


def test_what_a_library_says_is_one_line_that_ends() -> None:
    assert one_line(ValueError("Size mismatch:\n\t3 and  4\n")) == "Size mismatch: 3 and 4"
    assert one_line(ValueError("x" * 1000)) == "x" * 200
    assert one_line(ValueError("x" * 1000), longest=500) == "x" * 500


def test_an_error_without_words_is_known_by_its_class() -> None:
    assert one_line(KeyboardInterrupt()) == one_line(KeyboardInterrupt("\n")) == "KeyboardInterrupt"
