"""Errors that tell the user what to change; the command line shows them as one line, without a traceback."""


class UserError(ValueError):
    """Something that the user gave can't be used: the message names it and says what to do."""
