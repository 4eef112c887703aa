"""A real Slurm on this machine: a login node with the controller, and two compute nodes.

Each of the three is a host to its processes: it has its own name, addresses and loopback, in
namespaces of its own. A cable (veth) joins each node to a switch (bridge) on the login node: a job
on both nodes crosses a network, and a cable can be slow, or cut.

with Cluster() as cluster: cluster.run("sbatch", ...) runs it on the login node. All files are in
one temporary folder, every daemon is a child of this process in the foreground, and the network
goes with its last process: nothing is left behind, and the network of this machine is untouched.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "ip", "unshare")
PLACES = os.pathsep.join(["/usr/sbin", "/sbin", os.environ.get("PATH", "")])
# Two nodes as Perlmutter's are, as far as a job script can tell.
CONFIGURATION = """\
ClusterName=workshop
SlurmctldHost=login({login})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
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
SlurmdTimeout=300
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=n1 NodeAddr={n1} {node}
NodeName=n2 NodeAddr={n2} {node}
PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=60 State=UP
"""
# To Slurm a GPU is a device file: four that every machine has.
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
NODE = "CPUs=128 RealMemory=1000 Feature=gpu Gres=gpu:4 State=UNKNOWN"
ADDRESSES = {"login": "10.0.0.1", "n1": "10.0.0.11", "n2": "10.0.0.12"}
NODES = ("n1", "n2")


def why_not() -> str | None:
    """What keeps a Slurm from running here, or None."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=PLACES)]
    if missing:
        packages = "slurmctld slurmd slurm-client munge iproute2"
        return f"{', '.join(missing)} missing: apt-get install {packages}"
    if os.geteuid() != 0:
        return "slurmd needs root to start jobs"
    network = "ip link add switch type bridge && ip link add one type veth peer name two"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "sh", "-c", network],
        env={**os.environ, "PATH": PLACES},
        capture_output=True,
        text=True,
    )
    if tried.returncode == 0:
        return None
    return f"no network for each node on this machine: {tried.stderr.strip()}"


class Cluster:
    """Starts the daemons; stops them, and what they started, on the way out."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: it holds a socket
        configuration = str(self.folder / "slurm.conf")
        self.environment = {**os.environ, "PATH": PLACES, "SLURM_CONF": configuration}
        self.children: list[subprocess.Popen[str]] = []
        self.hosts: dict[str, int] = {}  # the process whose namespaces they are
        self.networks: dict[str, Path] = {}

    def __enter__(self) -> Cluster:
        # SIGTERM must end the jobs, too: handle it like Ctrl+C.
        self.handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            self.configure()
            self.start_hosts()
            self.start_munge()
            self.start("login", "slurmctld", "-D", "-c")
            for node in NODES:
                self.start(node, "slurmd", "-D", "-c", "-N", node)
            idle = ("sinfo", "-h", "-t", "idle", "-o", "%D")
            self.wait_until(lambda: self.run(*idle).stdout.strip() == "2")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.networks:
            for process in self.processes(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        for child in self.children:
            child.kill()
            child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, self.handler)

    def processes(self, host: str) -> list[int]:
        """The processes of a host: those in its network namespace."""
        numbers = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "ns" / "net").readlink() == self.networks[host]:
                    numbers.append(int(process.name))
        return numbers

    def configure(self) -> None:
        self.folder.chmod(0o755)
        for name in ("state", "spool.n1", "spool.n2", "tmp.n1", "tmp.n2"):
            (self.folder / name).mkdir()
        text = CONFIGURATION.format(folder=self.folder, node=NODE, **ADDRESSES)
        (self.folder / "slurm.conf").write_text(text)
        gpus = [f"NodeName=n[1-2] Name=gpu File={device}\n" for device in DEVICES]
        (self.folder / "gres.conf").write_text("".join(gpus))
        # Version 2 would look for systemd; version 1 needs nothing as long as nothing uses it.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def start_hosts(self) -> None:
        for name in ADDRESSES:
            script = f"hostname {name} && ip link set lo up && echo up && exec sleep infinity"
            host = self.spawn("unshare", "--net", "--uts", "sh", "-c", script)
            assert host.stdout and host.stdout.readline() == "up\n"
            self.hosts[name] = host.pid
            self.networks[name] = Path(f"/proc/{host.pid}/ns/net").readlink()
        self.on("login", "ip link add switch type bridge")
        self.on("login", f"ip address add {ADDRESSES['login']}/24 dev switch")
        self.on("login", "ip link set switch up")
        for node in NODES:
            peer = f"peer name eth0 netns {self.hosts[node]}"
            self.on("login", f"ip link add {node} type veth {peer}")
            self.on("login", f"ip link set {node} master switch up")
            self.on(node, f"ip address add {ADDRESSES[node]}/24 dev eth0")
            self.on(node, "ip link set eth0 up")

    def start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        words = ["--foreground", "--force", f"--key-file={key}"]
        for name in ("socket", "pid-file", "log-file", "seed-file"):
            words.append(f"--{name}={self.folder}/munge.{name}")
        self.start("login", "munged", *words)
        self.wait_until((self.folder / "munge.socket").exists)

    def spawn(self, *words: str, **options) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *words],  # it ends with these tests
            env=self.environment,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl+C is for the tests: they end it
            **{"stdout": subprocess.PIPE, **options},
        )
        self.children.append(child)
        return child

    def start(self, host: str, name: str, *options: str) -> None:
        """Start a daemon on a host."""
        with (self.folder / f"{len(self.children)}-{name}.log").open("w") as log:
            program = str(shutil.which(name, path=PLACES))
            words = [*self.enter(host), program, *options]
            self.spawn(*words, stdout=log, stderr=subprocess.STDOUT)

    def wait_until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not true():
            if time.monotonic() > end:
                logs = [log.read_text()[-1000:] for log in self.folder.glob("*.log")]
                raise RuntimeError("Slurm did not start:\n" + "\n".join(logs))
            time.sleep(0.2)

    def enter(self, host: str) -> list[str]:
        """The command that runs another command on a host."""
        return ["nsenter", "--target", str(self.hosts[host]), "--net", "--uts"]

    def on(self, host: str, command: str) -> None:
        words = [*self.enter(host), *command.split()]
        subprocess.run(words, env=self.environment, check=True, timeout=60)

    def run(self, *words: str, **options) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node."""
        options = {"env": self.environment, "timeout": 60, **options}
        words = (*self.enter("login"), *words)
        return subprocess.run(words, capture_output=True, text=True, **options)

    def cut(self, node: str) -> None:
        """Cut a node's cable, and let the controller give it up after seconds, not minutes."""
        conf = self.folder / "slurm.conf"
        conf.write_text(re.sub(r"(SlurmdTimeout|MessageTimeout)=\d+", r"\1=5", conf.read_text()))
        self.on("login", "scontrol reconfigure")
        self.on("login", f"ip link set {node} down")

    def slow(self, node: str, rate: str) -> bool:
        """Limit the rate of a node's cable, if this kernel can."""
        words = f"tc qdisc add dev {node} root tbf rate {rate} burst 256kb latency 1s"
        return self.run(*words.split()).returncode == 0

    def received(self, node: str) -> int:
        """The bytes that the switch has received from a node."""
        (link,) = json.loads(self.run("ip", "-json", "-stats", "link", "show", node).stdout)
        return int(link["stats64"]["rx"]["bytes"])
