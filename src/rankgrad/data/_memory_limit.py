"""How much memory this process may still allocate. Readers ask before they allocate large arrays.

It is the least of three limits: the free memory of the machine, what is left in the control groups
(cgroups, version 1 or 2) of the process, and what ``ulimit -v`` allows. Each limit has a function
that yields it in bytes, or nothing where the system does not tell.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rankgrad._quoting import shorten

_FALLBACK = 1 << 40  # bytes, on systems that tell none of these limits
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096  # bytes


def available(root: Path = Path("/")) -> int:
    """The bytes of memory that this process may still allocate.

    Args:
        root: the folder that contains ``proc`` and ``sys``; tests give another one.
    """
    limits = [*_free_memory(root), *_control_groups(root), *_address_space(root)]
    return max(0, min(limits, default=_FALLBACK))


def check(needed: int, limit: int, what: str, hint: str) -> None:
    """Raise an error if more memory is needed than the limit.

    Args:
        needed: bytes.
        limit: bytes; what is :func:`available`, or a part of it.
        what: what needs the memory, and for which file: the subject of the message.
        hint: what the user can do about it.

    >>> from rankgrad.data._memory_limit import check
    >>> check(8 << 30, 2 << 30, "a.txt: 2 rows of 1,000,000,000 features", "drop some")
    Traceback (most recent call last):
    ValueError: a.txt: 2 rows of 1,000,000,000 features would take 8.6 GB of memory, and 2.1 GB
        are available: drop some
    """
    if needed > limit:
        raise ValueError(
            f"{shorten(what, 400)} would take {gigabytes(needed)} of memory, and "
            f"{gigabytes(limit)} are available: {hint}"
        )


def gigabytes(size: int) -> str:
    """A number of bytes in GB, for messages."""
    return f"{size / 1e9:,.2g} GB" if size < 10e9 else f"{size / 1e9:,.0f} GB"


def _free_memory(root: Path) -> Iterator[int]:
    """The free memory of the machine, or all its memory where the system tells only that."""
    kilobytes = _fields(root / "proc/meminfo").get("MemAvailable:")
    if kilobytes is not None:
        yield kilobytes * 1024
    elif "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        yield os.sysconf("SC_PHYS_PAGES") * _PAGE


def _control_groups(root: Path) -> Iterator[int]:
    """What is left in each control group of the process; a group's file cache counts as free."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        # A line is number:controllers:path; a line that is cut short gets empty fields.
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":  # version 2
            base, prefix = root / "sys/fs/cgroup", ""
            limit_file, usage_file = "memory.max", "memory.current"
        elif "memory" in controllers.split(","):  # version 1; total_ includes the groups below
            base, prefix = root / "sys/fs/cgroup/memory", "total_"
            limit_file, usage_file = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        # The limits of parent groups apply too. In a container the group of the process may be the
        # base itself, whatever the path says; a folder that does not exist has no limit.
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            limit, usage = _number(folder / limit_file), _number(folder / usage_file)
            if limit is not None and usage is not None:
                statistics = _fields(folder / "memory.stat")
                caches = (f"{prefix}active_file", f"{prefix}inactive_file")
                yield limit - usage + sum(statistics.get(cache, 0) for cache in caches)
            if folder == base:
                break


def _address_space(root: Path) -> Iterator[int]:
    """What ``ulimit -v`` leaves the process, if it is set."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _text(root / "proc/self/statm").split()
    if limit != resource.RLIM_INFINITY:
        yield limit - (int(used[0]) * _PAGE if used else 0)


def _fields(path: Path) -> dict[str, int]:
    """The numbers of a file with lines ``name number ...``, by name."""
    pairs = (line.split()[:2] for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _number(path: Path) -> int | None:
    """The number in a file; None if there is no such file, or no number in it."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None  # "max" is no limit


def _text(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
