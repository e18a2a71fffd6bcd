"""User-correctable errors. Everything else is a bug and shows its traceback."""

from __future__ import annotations


class DCSError(Exception):
    """Root of all expected failures.

    Its text is one line: what is wrong (file, key or row, and the value), what is allowed, and
    what to do next. The command line prints it and exits with code 2.
    """


class InvalidInputError(DCSError, ValueError):
    """An argument, array or file has a value that is not allowed."""


class TableError(InvalidInputError):
    """A probability table or an array of one is malformed; names file, row, class and value."""


class ConfigError(InvalidInputError):
    """A configuration key, option or name is not allowed."""


class SchemeError(InvalidInputError):
    """A correction scheme cannot be read, or does not fit the table it is applied to."""


class ScoringError(DCSError):
    """A model cannot be loaded, or a prompt cannot be scored."""


class TrackingError(DCSError):
    """The tracking store cannot be used."""


class MissingDependencyError(DCSError, ImportError):
    """An optional dependency is needed for what was asked."""
