"""A real Slurm on this machine: a controller, two virtual nodes, munge; no systemd, no root folder.

with Cluster() as cluster: cluster.run("sbatch", ...). Everything lives in one temporary folder, and
every daemon is a child of this process in the foreground, so that none is left behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo", "setpriv")
PLACES = os.pathsep.join(["/usr/sbin", "/sbin", os.environ.get("PATH", "")])
# Two nodes as Perlmutter's are, as far as a job script can tell.
CONFIGURATION = """\
ClusterName=workshop
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1
KillWait=2
MessageTimeout=30
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} {node}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} {node}
PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=60 State=UP
"""
# To Slurm a GPU is a device file: four that every machine has.
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
NODE = "CPUs=128 RealMemory=1000 Feature=gpu Gres=gpu:4 State=UNKNOWN"


def why_not() -> str | None:
    """What keeps a Slurm from running here, or None."""
    lacking = [name for name in (*DAEMONS, *CLIENTS) if not shutil.which(name, path=PLACES)]
    if lacking:
        return f"{', '.join(lacking)} missing: apt-get install slurmctld slurmd slurm-client munge"
    return None if os.geteuid() == 0 else "slurmd needs root to start jobs"


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Cluster:
    """Starts the daemons; stops them, and what they started, on the way out."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: it holds a socket
        self.environment = {
            **os.environ,
            "PATH": PLACES,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }
        self.daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        # A test run that is told to end must still end its jobs: as after Ctrl+C.
        self.handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            self.configure()
            self.start_munge()
            self.start("slurmctld", "-D", "-c")
            for node in ("n1", "n2"):
                self.start("slurmd", "-D", "-c", "-N", node)
            self.wait_until(
                lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() == "2"
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if len(self.daemons) == 4:  # a job that still runs would outlive the daemons
            self.run("scancel", "--user=root")
            end = time.monotonic() + 60
            while self.run("squeue", "-h").stdout.strip() and time.monotonic() < end:
                time.sleep(0.2)
        for step in self.steps():  # one that still has something to tell would try for ever
            with contextlib.suppress(ProcessLookupError):
                os.kill(step, signal.SIGKILL)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, self.handler)

    def steps(self) -> list[int]:
        """The processes that look after a job: each listens at a socket in a spool folder."""
        spool = f"{self.folder}/spool."
        lines = Path("/proc/net/unix").read_text().splitlines()
        sockets = {f"socket:[{line.split()[6]}]" for line in lines if spool in line}
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if any(str(fd.readlink()) in sockets for fd in (process / "fd").iterdir()):
                    found.append(int(process.name))
        return found

    def configure(self) -> None:
        self.folder.chmod(0o755)
        for name in ("state", "spool.n1", "spool.n2"):
            (self.folder / name).mkdir()
        host = socket.gethostname().split(".")[0]
        text = CONFIGURATION.format(
            host=host, folder=self.folder, ports=free_ports(3), user="root", node=NODE
        )
        (self.folder / "slurm.conf").write_text(text)
        gpus = [f"NodeName=n[1-2] Name=gpu File={device}\n" for device in DEVICES]
        (self.folder / "gres.conf").write_text("".join(gpus))
        # Version 2 would look for systemd; version 1 needs nothing as long as nothing uses it.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log"}
        files.update({"seed-file": "munge.seed", "key-file": "munge.key"})
        words = [f"--{option}={self.folder / name}" for option, name in files.items()]
        self.start("munged", "--foreground", "--force", *words)
        self.wait_until((self.folder / "munge.socket").exists)

    def start(self, name: str, *options: str) -> None:
        with (self.folder / f"daemon-{len(self.daemons)}-{name}.log").open("wb") as log:
            program = shutil.which(name, path=PLACES)
            daemon = subprocess.Popen(  # one that outlives these tests is told to end
                ["setpriv", "--pdeathsig", "TERM", str(program), *options],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl+C is for the tests: they end the daemons
            )
        self.daemons.append(daemon)

    def wait_until(self, true, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not true():
            ended = [daemon.args for daemon in self.daemons if daemon.poll() is not None]
            if ended or time.monotonic() > end:
                raise RuntimeError(f"Slurm did not start ({ended or 'time is up'}):\n{self.logs()}")
            time.sleep(0.2)

    def logs(self) -> str:
        """The last lines of every daemon: why it did not start."""
        texts = []
        for log in sorted(self.folder.glob("*.log")):
            texts += [f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-15:]]
        return "\n".join(texts)

    def run(self, *words: str, **options) -> subprocess.CompletedProcess[str]:
        options = {"env": self.environment, "timeout": 60, **options}
        return subprocess.run(words, capture_output=True, text=True, **options)
