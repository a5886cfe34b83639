"""Limits of containers: processors and memory of a process's control group, in both versions of them."""

import math

import pytest

from datasets import cgroups, processes
from datasets.processes import available_memory

INF = math.inf
V1, V2 = "3:cpu,cpuacct:{0}\n4:memory:{0}\n0::/\n", "0::{0}\n"
QUOTA_V1 = {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"}
MEMORY_V1 = {
    "memory.limit_in_bytes": "1000",
    "memory.usage_in_bytes": "900",
    "memory.stat": "cache 700\ntotal_inactive_file 600",
}
MEMORY_V2 = {"memory.max": "1000", "memory.current": "900", "memory.stat": "anon 5\ninactive_file 600"}
UNLIMITED_V1 = {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000", "memory.limit_in_bytes": str(2**62)}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    def plant(groups, own, files):
        (tmp_path / "self").write_text(groups.format(own))
        for place, contents in files.items():
            (tmp_path / place).mkdir(parents=True, exist_ok=True)
            for name, text in contents.items():
                (tmp_path / place / name).write_text(text + "\n")

    monkeypatch.setattr(cgroups, "SELF", tmp_path / "self")
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    return plant


@pytest.mark.parametrize(
    ("groups", "own", "files", "processors", "memory"),
    [
        (V2, "/", {"": {"cpu.max": "50000 100000"} | MEMORY_V2}, 0.5, 700),
        (V2, "/job/step", {"": {}, "job": {"cpu.max": "200000 100000"} | MEMORY_V2, "job/step": {}}, 2, 700),
        (V2, "/a", {"": {"cpu.max": "max 100000"}, "a": {"memory.max": "max", "memory.current": "5"}}, INF, INF),
        (V2, "/host/docker/77", {"": {"cpu.max": "300000 100000"}}, 3, INF),
        (V1, "/job", {"cpu,cpuacct/job": QUOTA_V1, "memory/job": MEMORY_V1}, 1.5, 700),
        (V1, "/job", {"cpu": QUOTA_V1, "memory": MEMORY_V1, "memory/job": {}}, 1.5, 700),
        (V1, "/", {"cpu,cpuacct": UNLIMITED_V1, "memory": {}}, INF, INF),
        ("", "/", {"": {"cpu.max": "100000 100000"}}, INF, INF),
        (V2, "/", {"": {"cpu.max": "", "memory.max": "\xff", "memory.current": "x"}}, INF, INF),
    ],
)
def test_limits_hold_from_all_groups_above(tree, groups, own, files, processors, memory):
    tree(groups, own, files)
    assert (cgroups.processors(), cgroups.free_memory()) == (processors, memory)


def test_a_program_counts_what_its_container_has(tree, monkeypatch):
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: range(64))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    tree(V2, "/", {"": {"cpu.max": "150000 100000"} | MEMORY_V2})
    assert (processes.cpu_count(), available_memory()) == (2, 700)
    tree(V2, "/", {"": {"cpu.max": "max 100000"}})
    assert processes.cpu_count() == 64
