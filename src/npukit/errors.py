"""The one kind of error that is the user's to mend."""

from __future__ import annotations


class NpukitError(Exception):
    """Something the user can mend: one sentence that says what is wrong and what to do.

    The command prints it without a traceback and ends with code 2; every other exception is a bug of ours.
    """
