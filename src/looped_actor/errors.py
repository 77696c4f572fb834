"""The error that is shown to users as one sentence."""


class UserError(ValueError):
    """Something was given that cannot be used: the message says what, and what to give instead.

    The command line prints it without a traceback. Any other `ValueError` is a mistake of the package.
    """
