"""The error of everything that is given to Nightsweep and cannot be used."""

from __future__ import annotations


class InputError(ValueError):
    """A path, a file or an option cannot be used.

    Its text is one line: which, what is wrong with it, and what was expected. A command prints it and ends with
    status 2.
    """
