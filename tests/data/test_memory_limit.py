"""What memory can be had: the least of machine and control groups, from files made for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankgrad.data import _memory_limit

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": f"MemAvailable: {8 * GIB // 1024} kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8 * GIB),
        # Version 2: the group's own limit, less what is used, file cache given back.
        (
            {
                "proc/self/cgroup": "0::/app\n",
                f"{V2}/app/memory.max": f"{4 * GIB}\n",
                f"{V2}/app/memory.current": f"{3 * GIB}\n",
                f"{V2}/app/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file {GIB // 2}\n",
            },
            5 * GIB // 2,
        ),
        # A limit of the group above counts too, and "max" is none.
        (
            {
                "proc/self/cgroup": "0::/slice/app\n",
                f"{V2}/slice/app/memory.max": "max\n",
                f"{V2}/slice/app/memory.current": "5\n",
                f"{V2}/slice/memory.max": f"{2 * GIB}\n",
                f"{V2}/slice/memory.current": f"{GIB}\n",
            },
            GIB,
        ),
        # Version 1, in a container whose path is that of the host.
        (
            {
                "proc/self/cgroup": "3:cpu:/x\n2:hugetlb,memory:/docker/abc\n",
                f"{V1}/memory.limit_in_bytes": f"{3 * GIB}\n",
                f"{V1}/memory.usage_in_bytes": f"{2 * GIB}\n",
                f"{V1}/memory.stat": f"total_inactive_file {GIB}\ntotal_active_file 0\n",
            },
            2 * GIB,
        ),
        # More is used than may be.
        (
            {
                "proc/self/cgroup": "0::/\n",
                f"{V2}/memory.max": "5\n",
                f"{V2}/memory.current": "9\n",
            },
            0,
        ),
    ],
)
def test_the_least_counts(tmp_path, monkeypatch, files, expected):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert _memory_limit.available(write(tmp_path, files)) == expected


def test_a_limit_of_the_shell_counts(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (GIB, GIB))
    root = write(tmp_path, {"proc/self/statm": f"{GIB // 2 // os.sysconf('SC_PAGE_SIZE')} 1 1\n"})
    assert _memory_limit.available(root) == GIB // 2


def test_this_machine_has_some():
    assert 1 << 20 < _memory_limit.available() <= 1 << 45
