"""The report: reads run folders, writes one HTML page that opens from disk.

All its numbers come from :mod:`rankgrad.results`. ``_page`` puts the page together: ``_sections``
writes text and tables as HTML; ``_per_query`` and ``_explained`` choose the queries to show and
pack their values for ``page.js``, which draws the charts in the frame of ``page.html``.

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
