"""How much memory this process may still take, asked before large arrays are allocated.

It is the least of what the machine has free, what the control groups of the process leave it
(version 1 or 2; a container is one), and what ``ulimit -v`` allows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rankgrad._quoting import shorten

_UNKNOWN = 1 << 40  # bytes, on systems that do not say
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096  # bytes


def available(root: Path = Path("/")) -> int:
    """The bytes of memory that this process may still take.

    Args:
        root: the folder that ``proc`` and ``sys`` are in.
    """
    limits = [*_machine(root), *_control_groups(root), *_address_space(root)]
    return max(0, min(limits, default=_UNKNOWN))


def check(needed: int, limit: int, what: str, hint: str) -> None:
    """An error that says how much memory is needed, if it is more than the limit.

    Args:
        needed: bytes.
        limit: bytes: those that are :func:`available`, or a part of them.
        what: what needs it, with the file it is from.
        hint: what to do about it.

    >>> from rankgrad.data._memory_limit import check
    >>> check(8 << 30, 2 << 30, "a.txt: 2 rows of 1,000,000,000 features", "drop some")
    Traceback (most recent call last):
    ValueError: a.txt: 2 rows of 1,000,000,000 features would take 8.6 GB of memory, and 2.1 GB can
        be had: drop some
    """
    if needed > limit:
        raise ValueError(
            f"{shorten(what, 400)} would take {gigabytes(needed)} of memory, and "
            f"{gigabytes(limit)} can be had: {hint}"
        )


def gigabytes(size: int) -> str:
    """A number of bytes in GB, for messages."""
    return f"{size / 1e9:,.2g} GB" if size < 10e9 else f"{size / 1e9:,.0f} GB"


def _machine(root: Path) -> Iterator[int]:
    kilobytes = _fields(root / "proc/meminfo").get("MemAvailable:")
    if kilobytes is not None:
        yield kilobytes * 1024
    elif "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _control_groups(root: Path) -> Iterator[int]:
    """What each control group that the process is in has left; its file cache can be freed."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        # A container may see its own group as the root, whatever the path says.
        inside = base / path.lstrip("/")
        for folder in (inside, *inside.parents):
            limit, usage = _number(folder / names[0]), _number(folder / names[1])
            if limit is not None and usage is not None:
                cache = _fields(folder / "memory.stat")
                kinds = (f"{names[2]}{kind}_file" for kind in ("active", "inactive"))
                yield limit - usage + sum(cache.get(kind, 0) for kind in kinds)
            if folder == base:
                break


def _address_space(root: Path) -> Iterator[int]:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _text(root / "proc/self/statm").split()
    if limit != resource.RLIM_INFINITY:
        yield limit - (int(used[0]) * _PAGE if used else 0)


def _fields(path: Path) -> dict[str, int]:
    """A file of lines ``name number ...``."""
    pairs = (line.split()[:2] for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None  # "max" is no limit


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
