"""A real Slurm of one node on the loopback, from Debian's packages slurm-wlm and munge, for the time of a test."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from child_processes import lives

DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIG = """
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=20
SlurmUser=root
SlurmdUser=root
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ReturnToService=2
KillWait=30
JobRequeue=1
SchedulerParameters=batch_sched_delay=0,sched_interval=1
NodeName=localhost NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=tests Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why no node can be started here; empty where it can."""
    missing = [name for name in (*DAEMONS, "sbatch") if which(name) is None]
    if missing:
        return f"needs Debian's slurm-wlm and munge: no {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "only root may start Slurm's daemons"


def which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")


@contextmanager
def slurm_node(folder: Path, *, cpus: int) -> Iterator[dict[str, str]]:
    """Inside, the node runs; gives the environment in which Slurm's commands find it. `folder`: a short path, for the
    name of a socket has at most 108 characters."""
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(mode=0o700)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    with socket.socket() as one, socket.socket() as other:
        for free in (one, other):
            free.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], other.getsockname()[1]
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(folder=folder, ports=ports, cpus=cpus))
    environment = os.environ | {"SLURM_CONF": str(config)}
    files = {"socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "munge/seed"}
    munge = ["--force", "--key-file", key, *(f"--{name}={folder / file}" for name, file in files.items())]
    try:
        for daemon, words in zip(DAEMONS, (munge, ["-f", config], ["-f", config, "-N", "localhost"]), strict=True):
            subprocess.run([str(which(daemon)), *words], check=True, env=environment, stdout=subprocess.DEVNULL)
        for _ in range(300):
            asked = subprocess.run(["sinfo", "-h", "-o", "%t"], env=environment, capture_output=True, text=True)
            if asked.stdout.strip() == "idle":
                break
            time.sleep(0.1)
        else:
            raise RuntimeError(f"the node is {asked.stdout or asked.stderr}, not idle")
        yield environment
    finally:
        subprocess.run(["scancel", "--user", "root"], env=environment, check=False)
        pids = [int(file.read_text()) for file in folder.glob("*.pid")]
        for pid in reversed(pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 40
        while any(map(lives, pids)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(map(lives, pids)), "a daemon is left"
