"""Errors that are messages to users: one sentence that says what is wrong, and what to give instead."""


class UserError(ValueError):
    """Something was given that cannot be used.

    The command line prints it without a traceback; a `ValueError` of any other class is a bug of the package.
    """


class FileError(UserError):
    """A file that cannot be used, and why."""


class PolicyError(FileError):
    """Weights that cannot be loaded, and why."""
