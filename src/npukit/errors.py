"""The one kind of error that is the user's to fix, and the one kind of warning."""

from __future__ import annotations


class NpukitError(Exception):
    """Something the user can fix: one sentence that says what is wrong and what to do.

    The command prints it without a traceback; every other exception is a bug of ours. It ends with code 2, or with 1
    where the work had begun and failed on the way (see docs/reference/exit-codes.md).

    >>> raise NpukitError("There is no file a.yaml.")
    >>> raise NpukitError("The disk is full.", on_the_way=True)
    """

    def __init__(self, sentence: str, on_the_way: bool = False, code: str = "", remedy: str = "") -> None:
        super().__init__(sentence)
        self.on_the_way = on_the_way
        self.code = code or ("failed" if on_the_way else "invalid_input")  # for programs, with --json
        self.remedy = remedy  # the command that helps, where there is one

    @property
    def exit_code(self) -> int:
        return 1 if self.on_the_way else 2


class NpukitWarning(UserWarning):
    """Something the user should know, though the work goes on; the command prints it as one sentence.

    >>> warnings.warn("The newest checkpoint is broken: an older one is used.", NpukitWarning, stacklevel=2)
    """
