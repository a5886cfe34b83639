"""Read what a container, a job or a service may use of the machine: limits of its control groups, versions 1 and 2.

A limit of a group holds for all groups below it, so each group from the process's own up to the root counts.
Where a file system shows a container only its own part, that part's root is the process's group.
"""

import math
from collections.abc import Iterator
from pathlib import Path

SELF, ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def processors() -> float:
    """Return the processors that this process's groups may use at a time; else infinity."""
    quotas = [math.inf]
    for folder in _groups("cpu"):
        quota, period = [*_words(folder / "cpu.max"), "", ""][:2]
        quota, period = quota or _word(folder / "cpu.cfs_quota_us"), period or _word(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):  # else "max", or -1: no quota
            quotas.append(int(quota) / int(period))
    return min(quotas)


def free_memory() -> float:
    """Return the bytes that the groups of this process may still use; infinity without a limit. Page cache is free."""
    left = [math.inf]
    for folder in _groups("memory"):
        limit = _word(folder / "memory.max") or _word(folder / "memory.limit_in_bytes")
        used = _word(folder / "memory.current") or _word(folder / "memory.usage_in_bytes")
        if limit.isdecimal() and used.isdecimal():
            words = _words(folder / "memory.stat")
            facts = dict(zip(words[::2], words[1::2], strict=False))
            cached = facts.get("total_inactive_file") or facts.get("inactive_file") or "0"
            left.append(max(0, int(limit) - int(used) + int(cached)))
    return min(left)


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's groups for a controller, up to the root."""
    for line in _text(SELF).splitlines():
        _, names, own = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        roots = [ROOT / names, ROOT / controller] if names else [ROOT, ROOT / "unified"]
        for root in filter(Path.is_dir, roots):
            path = root / own.lstrip("/")
            yield from (place for place in (path, *path.parents) if place.is_relative_to(root))


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _word(path: Path) -> str:
    return next(iter(_words(path)), "")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):  # no such controller, or not Linux
        return ""
