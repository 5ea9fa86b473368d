"""The report: run folders in, one page out that opens from disk.

It chooses which queries are shown; all its numbers come from :mod:`rankgrad.results`.

>>> from rankgrad import report
>>> report.find(["/nowhere"])
Traceback (most recent call last):
FileNotFoundError: /nowhere is not there
"""

from rankgrad.extras import requires

with requires("report"):
    from rankgrad.report._page import build, write
    from rankgrad.results.runs import Run, find, read

__all__ = ["Run", "build", "find", "read", "write"]
