"""The one error of this room: a measurement that could not be taken, and why."""


class BenchError(Exception):
    """The figure would be missing or wrong; the message says what to look at."""
