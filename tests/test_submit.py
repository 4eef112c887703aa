"""The job scripts: shellcheck, a real Slurm, and the words that PBS and Cobalt jobs would start.

PBS Pro and Cobalt are in no Debian release, so their scripts run here with the scheduler's
variables and with commands that write down how they were called. That shows what the scripts do,
not that Polaris takes it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import slurm
from conftest import LOG_LINE, ROOT, files_in, read_results, stage_environment
from test_results import copy as pages  # noqa: F401  a fixture

from tfworkshop.ladder import results
from tfworkshop.report import horovod_timeline
from tfworkshop.stages import STAGES

pytestmark = pytest.mark.timeout(300)

JOB_SCRIPTS = ("slurm.sbatch", "polaris.pbs", "thetagpu.cobalt")
SCRIPTS = (*JOB_SCRIPTS, "common.sh", "one_rank.sh")


def checkout(folder: Path) -> Path:
    """The workshop as a user has it, without results: jobs write into the folder they start in."""
    for name in ("submit", "tfworkshop", *{stage.folder for stage in STAGES}):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "workshop", folder)
    return folder


# --- the files ---


def test_every_file_is_known() -> None:
    assert {path.name for path in (ROOT / "submit").iterdir()} == {*SCRIPTS, "README.md"}


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="apt-get install shellcheck")
@pytest.mark.parametrize("path", [*(f"submit/{name}" for name in SCRIPTS), ".ci/run"])
def test_shellcheck(path: str) -> None:
    process = subprocess.run(["shellcheck", "-x", path], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("name", JOB_SCRIPTS)
def test_directives_come_first_and_are_explained(name: str) -> None:
    """All of them before the first command; PBS and Cobalt want them alone, in one block."""
    text = (ROOT / "submit" / name).read_text()
    prefix = {"slurm.sbatch": "#SBATCH", "polaris.pbs": "#PBS", "thetagpu.cobalt": "#COBALT"}[name]
    lines = text.splitlines()
    block = [line for line in lines if line.startswith(prefix)]
    assert lines[1 : 1 + len(block)] == block
    assert any("CHANGE_ME" in line for line in block)
    if name == "slurm.sbatch":
        assert all(re.search(r"\S  +# \S", line) for line in block)
    else:
        assert not any("#" in line[1:] for line in block)
        explained = lines[1 + len(block) : lines.index("set -euo pipefail")]
        for line in block:
            words = line.split()
            option = re.split("[=:]", words[2])[0] if words[1] == "-l" else words[1]
            assert any(re.match(rf"#   {option} +\S", text) for text in explained), option


# --- a real Slurm ---


def has_mpi() -> bool:
    """Is Horovod here linked with an MPI? Asking Horovod itself would start TensorFlow."""
    found = find_spec("horovod")
    libraries = Path(found.origin).parent.glob("tensorflow/mpi_lib*.so") if found else ()
    return any(b"libmpi.so" in library.read_bytes() for library in libraries)


MPI = has_mpi()
needs_mpi = pytest.mark.skipif(not MPI, reason="Horovod is built without MPI: no mpicxx was found")


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Cluster]:
    problem = slurm.why_not()
    if problem:
        pytest.skip(problem)
    with slurm.Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def site(cluster: slurm.Cluster, small: Path, tmp_path_factory: pytest.TempPathFactory):
    """A checkout on the cluster, with this Python in the container's place."""
    folder = checkout(tmp_path_factory.mktemp("slurm") / "workshop")
    clean = stage_environment(
        PATH=slurm.PLACES,
        SLURM_CONF=cluster.environment["SLURM_CONF"],
        CONTAINER="none",
        WORKSHOP_VENV=sys.prefix,
        MNIST_NPZ=str(small),
        TF_NUM_INTRAOP_THREADS="1",
        TF_NUM_INTEROP_THREADS="1",
    )

    def submit(*words: str, **extra: str) -> SimpleNamespace:
        env = {**clean, **extra}
        process = cluster.run("sbatch", "--parsable", *words, cwd=folder, env=env)
        assert process.returncode == 0, process.stderr
        number = process.stdout.strip()
        return SimpleNamespace(number=number, log=folder / f"workshop-{number}.out")

    def sbatch(*words: str, **extra: str) -> SimpleNamespace:
        job = submit(*words, **extra)
        job.info = wait_for(cluster, job.number)
        job.output = job.log.read_text()
        return job

    return SimpleNamespace(folder=folder, submit=submit, sbatch=sbatch, env=clean, cluster=cluster)


def wait_for(cluster: slurm.Cluster, number: str, seconds: float = 240) -> dict[str, str]:
    """What Slurm says about a job when it has ended."""
    end = time.monotonic() + seconds
    while True:
        text = cluster.run("scontrol", "show", "job", number).stdout
        info = dict(re.findall(r"(\S+?)=(\S+)", text))
        if info.get("JobState") not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"):
            return info
        if time.monotonic() > end:
            cluster.run("scancel", number)
            pytest.fail(f"the job did not end in {seconds} s:\n{text}")
        time.sleep(0.5)


@pytest.fixture(scope="module")
def job(site: SimpleNamespace) -> SimpleNamespace:
    """Stage 02 on two ranks, submitted as submit/README.md says."""
    if not find_spec("horovod"):
        pytest.skip("Horovod is not built: ./workshop setup --horovod")
    words = ("submit/slurm.sbatch", "02", "--steps", "20", "--batch-size", "32")
    return site.sbatch("-A", "myproject", *words, RANKS="2", TIMELINE="1")


def test_slurm_trains_on_two_ranks(job: SimpleNamespace) -> None:
    assert (job.info["JobState"], job.info["ExitCode"]) == ("COMPLETED", "0:0"), job.output
    plain = re.sub(r"^\[(1,)?0\]<stdout>:", "", job.output, flags=re.M)  # 1,: Open MPI's
    assert len(LOG_LINE.findall(plain)) == 20
    assert "submit: 02_tf_function on 1 node(s), 2 rank(s):" in job.output
    assert not re.search(r"^\[(1,)?1\]<std", job.output, flags=re.M)  # rank 1 has nothing to say


def test_results_are_where_the_readme_says(site: SimpleNamespace, job: SimpleNamespace) -> None:
    name = f"02_tf_function-np2-{job.number}"
    results = read_results(site.folder / "results" / f"{name}.json")
    assert (results["stage"], results["ranks"]) == ("02_tf_function", 2)
    assert results["batch_size"] == 32
    assert job.output.endswith(f"submit: results in {site.folder}/results/{name}.json\n")
    timeline = (site.folder / "results" / f"{name}.timeline.json").read_text()
    assert ("MPI_ALLREDUCE" if MPI else "GLOO_ALLREDUCE") in timeline


def test_slurm_read_every_directive(site: SimpleNamespace, job: SimpleNamespace) -> None:
    wanted = {
        "JobName": "workshop",
        "Account": "myproject",  # from the command line, in the place of CHANGE_ME
        "Features": "gpu",
        "NumNodes": "1",
        "NumTasks": "4",
        "CPUs/Task": "32",
        "TimeLimit": "00:15:00",
        "Requeue": "0",
        "StdOut": str(site.folder / f"workshop-{job.number}.out"),
    }
    assert {name: job.info.get(name) for name in wanted} == wanted
    assert job.info["TresPerNode"].endswith("gpu:4")


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("--ntasks-per-node=4", "--ntasks-per-nodes=4", "unrecognized option"),
        ("--constraint=gpu ", "--constraint=gpuu", "Invalid feature"),
        ("--gpus-per-node=4", "--gpus-per-node=5", "not available"),
        ("--time=00:15:00", "--time=a-while", "Invalid --time"),
        ("--nodes=1", "--nodes=3", "more processors than permitted|not available"),
    ],
)
def test_slurm_refuses_a_wrong_directive(
    site: SimpleNamespace, tmp_path: Path, right: str, wrong: str, said: str
) -> None:
    text = (ROOT / "submit" / "slurm.sbatch").read_text()
    assert text.count(right) == 1
    script = tmp_path / "wrong.sbatch"
    script.write_text(text.replace(right, wrong))
    process = site.cluster.run(
        "sbatch", "--test-only", str(script), "02", cwd=site.folder, env=site.env
    )
    assert process.returncode != 0
    assert re.search(said, process.stderr), process.stderr


def test_slurm_accepts_the_script_as_it_is(site: SimpleNamespace) -> None:
    words = ("sbatch", "--test-only", "submit/slurm.sbatch", "02")
    process = site.cluster.run(*words, cwd=site.folder, env=site.env)
    assert process.returncode == 0, process.stderr


def readme_commands() -> list[str]:
    """Every sbatch and srun line of submit/README.md, with a project in."""
    text = (ROOT / "submit" / "README.md").read_text().replace("<project>", "myproject")
    blocks = "".join(re.findall(r"^```bash\n(.*?)^```", text, flags=re.M | re.S))
    found = re.findall(r"^(?:\w+=\S+ )*(?:sbatch|srun) .*", blocks, flags=re.M)
    return found + re.findall(r"`((?:\w+=\S+ )*sbatch -A [^`]+ \d\d)`", text)


def test_slurm_takes_the_commands_of_the_readme(site: SimpleNamespace) -> None:
    lines = readme_commands()
    assert len(lines) == 5 and any("-N 2" in line for line in lines)
    for line in lines:
        command = re.sub(r"(sbatch|srun) ", r"\1 --test-only ", line, count=1)
        process = site.cluster.run("bash", "-c", command, cwd=site.folder, env=site.env)
        assert process.returncode == 0, f"{line}: {process.stderr}"
        assert "to start at" in process.stderr


def test_slurm_placeholder_stops_the_job(site: SimpleNamespace) -> None:
    job = site.sbatch("submit/slurm.sbatch", "02")
    assert job.info["JobState"] == "FAILED"
    line = "submit: no project to charge: sbatch -A PROJECT ..., or edit --account\n"
    assert job.output == line


def test_ranks_that_do_not_find_each_other_stop(site: SimpleNamespace) -> None:
    """srun starts one rank on each of two nodes, and nothing joins them: no PMIx, or no MPI."""
    words = ("-A", "myproject", "-N", "2", "submit/slurm.sbatch", "02", "--steps", "5")
    job = site.sbatch(*words, RANKS="1", PMI="none")
    assert job.info["JobState"] == "FAILED"
    without = "02_tf_function: 2 processes, Horovod sees 1"
    assert ("OMPI was not built with SLURM's PMI support" if MPI else without) in job.output
    assert job.output.endswith("submit: the training ended with exit status 1\n")
    assert not list((site.folder / "results").glob(f"*-{job.number}.json"))


@needs_mpi
def test_mpirun_instead_of_horovodrun(site: SimpleNamespace) -> None:
    """One core for each rank is more than a machine may have; and here a user is root."""
    launcher = "mpirun --oversubscribe --allow-run-as-root -np 2"
    words = ("submit/slurm.sbatch", "06", "--steps", "10", "--batch-size", "32")
    extra = {"RANKS": "2", "LAUNCHER": launcher, "CHOOSE": "0", "TIMELINE": "1"}
    job = site.sbatch("-A", "myproject", *words, **extra)
    assert job.info["JobState"] == "COMPLETED", job.output
    assert len(LOG_LINE.findall(job.output)) == 10
    name = f"06_optimized-np2-{job.number}"
    assert read_results(site.folder / "results" / f"{name}.json")["ranks"] == 2
    assert "MPI_ALLREDUCE" in (site.folder / "results" / f"{name}.timeline.json").read_text()


@pytest.fixture(scope="module")
def two_nodes(site: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """06 on two nodes, as submit/README.md says; each rank tells how it ended."""
    python = tmp_path_factory.mktemp("venv") / "bin" / "python3"
    python.parent.mkdir()
    watched = f"PYTHONPATH={ROOT} exec {sys.executable} {ROOT}/tests/watched.py"
    python.write_text(f'#!/bin/sh\n{watched} "$@"\n')
    python.chmod(0o755)
    sent = [site.cluster.received(node) for node in slurm.NODES]
    words = ("-N", "2", "submit/slurm.sbatch", "06", "--steps", "10", "--batch-size", "32")
    extra = {"RANKS": "1", "CHOOSE": "0", "WORKSHOP_VENV": str(python.parent.parent)}
    job = site.sbatch("-A", "myproject", *words, **extra)
    assert job.info["JobState"] == "COMPLETED", job.output
    job.sent = [site.cluster.received(node) - old for node, old in zip(slurm.NODES, sent)]
    job.ranks = [json.loads((site.folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    return job


@needs_mpi
def test_two_nodes_train_as_one(site: SimpleNamespace, two_nodes: SimpleNamespace) -> None:
    assert "\nsrun --mpi=pmix --nodes=2 --ntasks=2 --ntasks-per-node=1 " in two_nodes.output
    zero, one = two_nodes.ranks
    assert (zero["host"], one["host"]) == slurm.NODES
    assert zero["made"] != one["made"] and zero["before"] == one["before"]
    assert zero["digest"] == one["digest"] != zero["before"]
    assert zero["losses"] == one["losses"] and len(zero["losses"]) == 10
    results = read_results(site.folder / "results" / f"06_optimized-np2-{two_nodes.number}.json")
    assert (results["ranks"], results["final_loss"]) == (2, zero["losses"][-1])


@needs_mpi
def test_the_gradients_cross_the_network(two_nodes: SimpleNamespace) -> None:
    """4.8 MB in each of ten steps, from each node."""
    assert min(two_nodes.sent) > 48e6


def test_interactive_job(site: SimpleNamespace) -> None:
    """The script itself, typed in a shell that srun gave; no launcher for one rank."""
    words = ("srun", "-A", "myproject", "-n", "1", "submit/slurm.sbatch", "02", "--steps", "2")
    env = {**site.env, "RANKS": "1", "LAUNCHER": ""}
    process = site.cluster.run(*words, cwd=site.folder, env=env, timeout=240)
    assert process.returncode == 0, process.stdout + process.stderr
    (path,) = (site.folder / "results").glob("02_tf_function-np1-*.json")
    assert read_results(path)["ranks"] == 1


@pytest.fixture(scope="module")
def cut(site: SimpleNamespace) -> SimpleNamespace:
    """02 on two nodes with a slow cable, which is then cut: the last job, for n2 stays away.

    Slurm takes its time to notice; the test of that comes at the end of this file."""
    cluster = site.cluster
    slow = cluster.slow("n2", "200mbit")
    words = ("-N", "2", "submit/slurm.sbatch", "02", "--steps", "1000", "--batch-size", "16")
    job = site.submit("-A", "myproject", *words, RANKS="1", TIMELINE="1")
    job.slow = slow
    timeline = site.folder / "results" / f"02_tf_function-np2-{job.number}.timeline.json"
    end = time.monotonic() + 120
    while not job.log.exists() or len(LOG_LINE.findall(job.log.read_text())) < 12:
        assert time.monotonic() < end, job.log.read_text()
        time.sleep(0.2)
    job.timeline = horovod_timeline.read(timeline)
    cluster.cut("n2")
    job.cut = datetime.now().replace(microsecond=0)
    return job


@needs_mpi
def test_a_slow_cable_shows_in_the_report(cut: SimpleNamespace) -> None:
    if cut.slow.returncode:
        pytest.skip(f"no slow cable on this machine: {cut.slow.stderr.strip()}")
    assert cut.timeline.verdict["kind"] == "communication-bound", cut.timeline
    assert cut.timeline.step_ms > 190  # 4.8 MB at 200 Mbit/s


# --- PBS, Cobalt, and containers: who is called with which words ---

STUB = """\
#!/bin/sh
# Writes down how it was called; what would train leaves results as a stage does.
{python} - "$@" <<'END'
import json, os, sys
from pathlib import Path
names = "GPU_ORDER CORES https_proxy HOROVOD_TIMELINE OMPI_MCA_plm PYTHONPATH".split()
names += "APPTAINERENV_LD_LIBRARY_PATH SINGULARITYENV_LD_LIBRARY_PATH WORKSHOP_RESULTS".split()
call = {{"words": ["{name}", *sys.argv[1:]], "env": {{n: os.environ.get(n) for n in names}}}}
with open("{calls}", "a") as file:
    file.write(json.dumps(call) + "\\n")
if "--results" in sys.argv and os.environ.get("STUB_RANKS"):
    results = {{"stage": "x", "ranks": int(os.environ["STUB_RANKS"]), "batch_size": 64}}
    path = Path(sys.argv[sys.argv.index("--results") + 1])
    path.write_text(json.dumps(results, indent=2))
if any(word.endswith("/choose.py") for word in sys.argv):
    print(os.environ.get("STUB_SWITCHES", ""))
END
exit ${{STUB_EXIT:-0}}
"""
ANSWERS = {  # commands that a script asks something
    "nvidia-smi": 'for i in 0 1 2 3; do case $1 in -L) echo "GPU $i: NVIDIA A100-SXM4-40GB";; '
    "*) echo $i;; esac; done",
    "qstat": 'echo "    Account_Name = ${STUB_PROJECT:-myproject}"',
}


class Site:
    """A checkout, an image, data, and a PATH of commands that only take notes."""

    def __init__(self, folder: Path, *commands: str) -> None:
        self.repo = checkout(folder / "workshop")
        self.calls, self.bin = folder / "calls", folder / "bin"
        self.image = self.repo / "container" / "workshop.sif"
        self.data = self.repo / "data" / "mnist.npz"
        for path in (self.image, self.data):
            path.parent.mkdir()
            path.touch()
        self.bin.mkdir()
        for name in ("module", "horovodrun", *commands):
            text = STUB.format(python=sys.executable, name=name, calls=self.calls)
            self.add(name, text)
        for name, answer in ANSWERS.items():
            self.add(name, f"#!/bin/bash\n{answer}\n")
        nodes = folder / "nodes"
        nodes.write_text("x1\n")
        self.nodes = nodes

    def add(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def run(self, script: str, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        variables = {
            "polaris.pbs": {
                "PBS_JOBID": "1234567.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov",
                "PBS_O_WORKDIR": str(self.repo),
                "PBS_NODEFILE": str(self.nodes),
            },
            "thetagpu.cobalt": {
                "COBALT_JOBID": "1234567",
                "COBALT_PROJECT": "myproject",
                "COBALT_NODEFILE": str(self.nodes),
            },
            "slurm.sbatch": {
                "SLURM_JOB_ID": "1234567",
                "SLURM_JOB_ACCOUNT": "myproject",
                "SLURM_SUBMIT_DIR": str(self.repo),
                "SLURM_JOB_NUM_NODES": "1",
                "SLURM_CPUS_PER_TASK": "32",
            },
        }[script]
        keep = {"HOME": os.environ.get("HOME", "/"), "PATH": f"{self.bin}:/usr/bin:/bin"}
        plain = {"PYTHONPATH": "/from/a/module", "STUB_RANKS": "4", "CHOOSE": "0"}
        env = {**keep, **plain, **variables, **extra}
        here = Path("/") if script != "thetagpu.cobalt" else self.repo
        command = ["bash", str(self.repo / "submit" / script), *words]
        env = {name: value for name, value in env.items() if value != "(unset)"}
        return subprocess.run(
            command, cwd=here, env=env, capture_output=True, text=True, timeout=60
        )

    @property
    def called(self) -> list[list[str]]:
        return [call["words"] for call in self.log]

    @property
    def log(self) -> list[dict]:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [json.loads(line) for line in lines]

    def training(self, stage: str, ranks: int, *options: object, script="train_MNIST.py"):
        """The words that must come after launcher and container."""
        repo = str(self.repo)
        words = [f"{repo}/submit/one_rank.sh", "python3", f"{repo}/{stage}/{script}"]
        words += ["--data", str(self.data)]
        words += ["--results", f"{repo}/results/{stage}-np{ranks}-1234567.json"]
        return [*words, *map(str, options)]


def complaint(process: subprocess.CompletedProcess[str]) -> str:
    """The one line that a script stops with."""
    assert process.returncode == 1, process.stdout + process.stderr
    assert re.fullmatch(r"submit: [^\n]+\n", process.stderr), process.stderr
    return process.stderr[len("submit: ") : -1]


def test_polaris_one_node(tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer")
    extra = {"STAGE": "06", "OPTIONS": "--steps 500 --batch-size 256"}
    process = site.run("polaris.pbs", **extra, PROFILE="1", TIMELINE="1")
    assert process.returncode == 0, process.stderr
    repo, name = str(site.repo), "06_optimized-np4-1234567"
    profile = ("--logdir", f"{repo}/results/logs/{name}")
    training = site.training("06_optimized", 4, *profile, "--steps", 500, "--batch-size", 256)
    container = ["apptainer", "exec", "--nv", "--fakeroot", "-B", repo, str(site.image)]
    assert site.called == [
        ["module", "use", "/soft/modulefiles"],
        ["module", "load", "spack-pe-base"],
        ["module", "load", "apptainer"],
        [*container, "horovodrun", "-np", "4", *training],
    ]
    assert site.log[-1]["env"] == {
        "GPU_ORDER": "reversed",
        "CORES": "0-7,32-39 8-15,40-47 16-23,48-55 24-31,56-63",
        "https_proxy": "http://proxy.alcf.anl.gov:3128",
        "HOROVOD_TIMELINE": f"{repo}/results/{name}.timeline.json",
        "OMPI_MCA_plm": None,
        "PYTHONPATH": None,
        "APPTAINERENV_LD_LIBRARY_PATH": None,
        "SINGULARITYENV_LD_LIBRARY_PATH": None,
        "WORKSHOP_RESULTS": None,
    }
    assert read_results(site.repo / "results" / f"{name}.json")["ranks"] == 4
    assert process.stdout.endswith(f"submit: results in {repo}/results/{name}.json\n")


def test_polaris_interactive_takes_words(tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer")
    process = site.run("polaris.pbs", "02", "--steps", "5", RANKS="1", STUB_RANKS="1")
    assert process.returncode == 0, process.stderr
    training = site.training("02_tf_function", 1, "--steps", 5)
    assert site.called[-1][6:] == [str(site.image), "horovodrun", "-np", "1", *training]


def test_polaris_many_nodes(tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer", "mpiexec")
    site.nodes.write_text("x1\nx2\n")
    told = complaint(site.run("polaris.pbs", "06"))
    assert "one node only" in told and "container/README.md" in told
    assert "## Several nodes of Polaris" in (ROOT / "container" / "README.md").read_text()
    site.calls.unlink()
    libraries = {"CRAY_LD_LIBRARY_PATH": "/cray", "LD_LIBRARY_PATH": "/usr/lib"}
    extra = {"MPICH_IMAGE": "1", "STUB_RANKS": "8", **libraries}
    process = site.run("polaris.pbs", "06", "--steps", "9", **extra)
    assert process.returncode == 0, process.stderr
    repo = str(site.repo)
    launcher = ["mpiexec", "--hostfile", str(site.nodes), "-n", "8", "--ppn", "4"]
    launcher += ["--depth=8", "--cpu-bind", "depth"]
    container = ["apptainer", "exec", "--nv", "--fakeroot", "-B", repo, "-B", "/opt"]
    container += ["-B", "/var/run/palsd", str(site.image)]
    assert site.called[3:] == [
        ["module", "load", "cray-mpich-abi"],
        [*launcher, *container, *site.training("06_optimized", 8, "--steps", 9)],
    ]
    env = site.log[-1]["env"]
    assert env["APPTAINERENV_LD_LIBRARY_PATH"] == f"/cray:/usr/lib:{tmp_path}/lib"
    assert env["CORES"] is None  # mpiexec binds


def test_cobalt_one_node(tmp_path: Path) -> None:
    site = Site(tmp_path, "singularity")
    process = site.run("thetagpu.cobalt", "04", "--steps", "50")
    assert process.returncode == 0, process.stderr
    repo = str(site.repo)
    logs = f"{repo}/results/logs/04_tf_profiler-np4-1234567"
    profile = ("--logdir", logs)
    container = ["singularity", "exec", "--nv", "-B", repo, "-B", "/lus", str(site.image)]
    training = site.training("04_tf_profiler", 4, *profile, "--steps", 50)
    assert site.called == [[*container, "horovodrun", "-np", "4", *training]]
    env = site.log[-1]["env"]
    assert (env["GPU_ORDER"], env["PYTHONPATH"]) == ("straight", None)
    assert env["https_proxy"] == "http://theta-proxy.tmi.alcf.anl.gov:3128"


def test_cobalt_many_nodes(tmp_path: Path) -> None:
    site = Site(tmp_path, "singularity", "mpirun")
    site.nodes.write_text("thetagpu01\nthetagpu02\n")
    process = site.run("thetagpu.cobalt", "06", STUB_RANKS="8", MPI_BASE="/site/openmpi")
    assert process.returncode == 0, process.stderr
    launcher = ["mpirun", "-hostfile", str(site.nodes), "-n", "8", "-npernode", "4"]
    container = ["singularity", "exec", "--nv", "-B", str(site.repo), "-B", "/lus"]
    container += ["-B", "/site/openmpi", str(site.image)]
    assert site.called == [[*launcher, *container, *site.training("06_optimized", 8)]]
    env = site.log[-1]["env"]
    assert env["SINGULARITYENV_LD_LIBRARY_PATH"] == "/site/openmpi/lib:"


def test_slurm_in_the_container(tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer")
    extra = {"SLURM_GPUS_ON_NODE": "4", "MODULES": "apptainer/1.4 cuda"}
    process = site.run("slurm.sbatch", "02", "--lr", "0.002", **extra)
    assert process.returncode == 0, process.stderr
    container = ["apptainer", "exec", "--nv", "-B", str(site.repo), str(site.image)]
    training = site.training("02_tf_function", 4, "--lr", "0.002")
    assert site.called == [
        ["module", "load", "apptainer/1.4", "cuda"],
        [*container, "horovodrun", "-np", "4", *training],
    ]
    assert site.log[-1]["env"]["OMPI_MCA_plm"] == "^slurm"


def test_slurm_many_nodes(tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer", "srun")
    process = site.run("slurm.sbatch", "06", SLURM_JOB_NUM_NODES="2", RANKS="2")
    assert process.returncode == 0, process.stderr
    launcher = ["srun", "--mpi=pmix", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2"]
    launcher += ["--cpus-per-task=32", "--cpu-bind=cores"]
    container = ["apptainer", "exec", "--nv", "-B", str(site.repo), str(site.image)]
    assert site.called == [[*launcher, *container, *site.training("06_optimized", 4)]]


def test_06_chooses_its_switches_before_the_ranks_start(tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer")
    container = ["apptainer", "exec", "--nv", "-B", str(site.repo), str(site.image)]
    choose = [*container, "python3", f"{site.repo}/06_optimized/choose.py", "--data", site.data]
    launch = [*container, "horovodrun", "-np", "4"]
    fastest = {"STUB_SWITCHES": "--xla on --precision mixed_bfloat16 --steps-per-call 50"}
    extra = {"RANKS": "4", "CHOOSE": "(unset)", **fastest}
    process = site.run("slurm.sbatch", "06", "--batch-size", "256", **extra)
    assert process.returncode == 0, process.stderr
    options = [*fastest["STUB_SWITCHES"].split(), "--batch-size", 256]
    assert site.called == [
        [*map(str, choose), "--batch-size", "256"],
        [*launch, *site.training("06_optimized", 4, *options)],
    ]
    for words in (["06", "--xla", "off"], ["02"]):  # the user's own choice; nothing to choose
        site.calls.unlink()
        assert site.run("slurm.sbatch", *words, **extra).returncode == 0
        stage = {"06": "06_optimized", "02": "02_tf_function"}[words[0]]
        assert site.called == [[*launch, *site.training(stage, 4, *words[1:])]]


def test_without_a_choice_06_trains_with_its_defaults(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add("python3", "#!/bin/sh\necho 'choose.py: none of them finished' >&2\nexit 1\n")
    extra = {"RANKS": "4", "CONTAINER": "none", "CHOOSE": "1"}
    process = site.run("slurm.sbatch", "06", **extra)
    assert process.returncode == 0, process.stderr
    assert "submit: choose.py found none: using the defaults\n" in process.stdout
    assert site.called == [["horovodrun", "-np", "4", *site.training("06_optimized", 4)]]


def test_another_launcher_and_another_container(tmp_path: Path) -> None:
    site = Site(tmp_path, "shifter")
    extra = {"ENTER": "shifter --image=a:b --module=gpu", "LAUNCHER": "mpirun -np 4"}
    process = site.run("slurm.sbatch", "06", RANKS="4", **extra)
    assert process.returncode == 0, process.stderr
    words = ["shifter", "--image=a:b", "--module=gpu", "mpirun", "-np", "4"]
    assert site.called == [[*words, *site.training("06_optimized", 4)]]


def test_the_parts_of_everything(tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer")
    site.add("module", "#!/bin/sh\n")
    words = {"STAGE": "all", "OPTIONS": "--steps 50 --batch-size 256"}
    process = site.run("polaris.pbs", **words, RANKS="4")
    assert process.returncode == 0, process.stderr
    repo, folder = str(site.repo), site.repo / "results" / "all-1234567"
    container = ["apptainer", "exec", "--nv", "--fakeroot", "-B", repo, str(site.image), "python3"]
    given = words["OPTIONS"].split()
    short = ["--data", str(site.data), "--steps", "30", "--batch-size", "256"]
    names = ("02_as_04_without_xla", "06_optimized")
    logs = [["--logdir", f"{folder}/logs/{name}"] for name in names]
    assert site.called == [
        [*container, f"{repo}/workshop", "doctor"],
        [*container, f"{repo}/workshop", "run", "--steps", "200", "--repeats", "3", *given],
        [*container, f"{repo}/04_tf_profiler/train_MNIST.py", *short, "--xla", "off", *logs[0]],
        [*container, f"{repo}/06_optimized/train_MNIST.py", *short, *logs[1]],
        [*container, f"{repo}/workshop", "bench", *given],
        [*container, f"{repo}/workshop", "scale", "--ranks", "1", "2", "4", *given],
    ]
    assert {call["env"]["WORKSHOP_RESULTS"] for call in site.log} == {str(folder)}
    assert process.stdout.endswith(f"submit: results in {folder}\n")
    told = complaint(site.run("polaris.pbs", **words, RANKS="4"))
    assert told == f"{folder} is there already: move it away"


def test_everything_says_what_failed_and_goes_on(tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer")
    site.add("nvidia-smi", "#!/bin/sh\nexit 9\n")
    told = complaint(site.run("slurm.sbatch", "all", RANKS="1", STUB_EXIT="3"))
    parts = ["doctor", "ladder", "profile_02", "profile_06", "bench", "scale"]
    assert told == f"of these, failed: {' '.join(parts)} gpu" and len(site.called) == len(parts)
    lines = [f"{name}: FAILED with exit status 3, see {name}.txt\n" for name in parts]
    written = (site.repo / "results" / "all-1234567" / "parts.txt").read_text()
    assert written == "".join(lines) + "gpu: FAILED, nvidia-smi told nothing\n"


@pytest.mark.parametrize(
    ("words", "extra", "said"),
    [
        ([], {"SLURM_JOB_NUM_NODES": "2"}, "all is for one node; name a stage"),
        (["--stages", "02"], {}, "all takes --steps, --repeats and --batch-size, each with a"),
    ],
)
def test_everything_refuses(words: list[str], extra: dict, said: str, tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer")
    assert complaint(site.run("slurm.sbatch", "all", *words, RANKS="4", **extra)).startswith(said)
    assert not site.called and not (site.repo / "results").exists()


def test_without_a_container(tmp_path: Path) -> None:
    """A module's TensorFlow: its PYTHONPATH stays, and a venv of ./workshop comes first on PATH."""
    site = Site(tmp_path)
    process = site.run("slurm.sbatch", "06", RANKS="4", CONTAINER="none")
    assert process.returncode == 0, process.stderr
    assert site.called == [["horovodrun", "-np", "4", *site.training("06_optimized", 4)]]
    assert site.log[-1]["env"]["PYTHONPATH"] == "/from/a/module"
    (site.repo / ".venv").mkdir()
    site.bin.rename(site.repo / ".venv" / "bin")
    (site.repo / ".venv" / "bin" / "python3").symlink_to(sys.executable)
    assert site.run("slurm.sbatch", "06", RANKS="4", CONTAINER="none").returncode == 0
    assert len(site.called) == 2


def test_relative_names_are_the_repositorys(tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer")
    link = tmp_path / "link"
    link.symlink_to(site.repo)
    extra = {"CONTAINER": "container/workshop.sif", "MNIST_NPZ": "data/mnist.npz"}
    process = site.run("polaris.pbs", "02", PBS_O_WORKDIR=str(link), **extra)
    assert process.returncode == 0, process.stderr
    container = ["apptainer", "exec", "--nv", "--fakeroot", "-B", str(site.repo)]
    words = [*container, "container/workshop.sif", "horovodrun", "-np", "4"]
    assert site.called[-1] == [*words, *site.training("02_tf_function", 4)]


def test_files_outside_are_mounted(tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer")
    elsewhere = tmp_path / "elsewhere" / "mnist.npz"
    elsewhere.parent.mkdir()
    elsewhere.touch()
    site.data.unlink()
    site.data.symlink_to(elsewhere)
    results = tmp_path / "out"
    process = site.run("slurm.sbatch", "02", RANKS="4", WORKSHOP_RESULTS=str(results))
    assert process.returncode == 0, process.stderr
    repo = str(site.repo)
    mounts = ["-B", repo, "-B", str(elsewhere.parent), "-B", str(results)]
    assert site.called[-1][3:10] == [*mounts, str(site.image)]
    assert site.called[-1][16:18] == ["--data", str(elsewhere)]


def test_every_stage_by_number_and_by_folder(tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer")
    for stage in {stage.folder: stage for stage in STAGES}.values():  # the last of a folder
        for name in (stage.number, stage.folder):
            process = site.run("slurm.sbatch", name, RANKS="4")
            assert process.returncode == 0, process.stderr
            assert site.called[-1][11] == str(site.repo / stage.folder / stage.file)
            assert ("--logdir" in site.called[-1]) == stage.profiles


@pytest.mark.parametrize("script", JOB_SCRIPTS)
@pytest.mark.parametrize(
    ("words", "extra", "said"),
    [
        ([], {}, "name a stage first, 00 to 06 or all, not ''"),
        (["7"], {}, "name a stage first, 00 to 06 or all, not '7'"),
        (["07"], {}, "no stage 07. The stages are 00 to 06"),
        (["tfworkshop"], {}, "name a stage first, 00 to 06 or all, not 'tools'"),
        (["02"], {"PROFILE": "1"}, "PROFILE=1 is for stages 04, 05 and 06"),
        (["02"], {"RANKS": "two"}, "RANKS=two: must be a number, the ranks on each node"),
        (["02"], {"CONTAINER": "/no/x.sif"}, "no image at /no/x.sif: build it (container/README"),
        (["02"], {"STUB_RANKS": "1"}, "4 ranks requested, Horovod saw 1"),
        (["02"], {"STUB_EXIT": "3"}, "the training ended with exit status 3"),
        (["02"], {"STUB_RANKS": ""}, "the training wrote no results"),
    ],
)
def test_one_clear_line(script: str, words: list[str], extra: dict, said: str, tmp_path) -> None:
    site = Site(tmp_path, "apptainer")
    site.add("module", "#!/bin/sh\n")
    told = complaint(site.run(script, *words, **{"RANKS": "4", **extra}))
    assert told.startswith(said)
    left = files_in(site.repo / "results") if (site.repo / "results").exists() else set()
    assert left == ({"02_tf_function-np4-1234567.json"} if "STUB_EXIT" in extra else set())


@pytest.mark.parametrize(
    ("script", "extra", "said"),
    [
        ("slurm.sbatch", {"SLURM_JOB_ACCOUNT": "change_me"}, "sbatch -A PROJECT"),
        ("polaris.pbs", {"STUB_PROJECT": "CHANGE_ME"}, "qsub -A PROJECT"),
        ("thetagpu.cobalt", {"COBALT_PROJECT": "CHANGE_ME"}, "qsub -A PROJECT"),
    ],
)
def test_a_placeholder_project_stops(script: str, extra: dict, said: str, tmp_path) -> None:
    site = Site(tmp_path, "apptainer")
    told = complaint(site.run(script, "02", **extra))
    assert told.startswith(f"no project to charge: {said}") and not site.called


@pytest.mark.parametrize(
    ("script", "number", "type_this"),
    [
        ("slurm.sbatch", "SLURM_JOB_ID", "sbatch"),
        ("polaris.pbs", "PBS_JOBID", "qsub"),
        ("thetagpu.cobalt", "COBALT_JOBID", "qsub"),
    ],
)
def test_outside_a_job(script: str, number: str, type_this: str, tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer")
    told = complaint(site.run(script, "02", **{number: "(unset)"}))
    assert told == f"this is not a job: type {type_this}, or start it in an interactive job"


@pytest.mark.parametrize("script", JOB_SCRIPTS)
def test_submitted_from_the_wrong_folder(script: str, tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer")
    (site.repo / "submit" / "common.sh").unlink()
    told = complaint(site.run(script, "02"))
    assert told.startswith(f"{site.repo} is not the workshop: cd to its top folder, then ")


def test_neither_gpu_nor_engine(tmp_path: Path) -> None:
    site = Site(tmp_path)
    told = complaint(site.run("slurm.sbatch", "02", RANKS="4"))
    assert told == "neither apptainer nor singularity is on PATH: load its module"
    site.add("nvidia-smi", "#!/bin/sh\nexit 9\n")
    told = complaint(site.run("slurm.sbatch", "02"))
    assert told == "no GPU on this node: request some, or set RANKS"


def test_missing_data_is_fetched_in_the_container_or_named(tmp_path: Path) -> None:
    site = Site(tmp_path, "apptainer")
    site.data.unlink()
    told = complaint(site.run("polaris.pbs", "02"))
    assert told.startswith(f"no data at {site.data}: type ./workshop data where there is a network")
    fetch = ["env", "WORKSHOP_PYTHON_ENV=system", "python3", "workshop", "data"]
    assert site.called[-1][-5:] == fetch and site.called[-1][0] == "apptainer"


# --- one rank ---


def one_rank(site: Site, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    command = words or ("bash", "-c", 'echo "$CUDA_VISIBLE_DEVICES"')
    env = {"PATH": f"{site.bin}:/usr/bin:/bin", **extra}
    script = str(ROOT / "submit" / "one_rank.sh")
    return subprocess.run([script, *command], env=env, capture_output=True, text=True)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("node"))


LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "HOROVOD_LOCAL_RANK", "PMI_LOCAL_RANK")
LOCAL_RANK += ("PALS_LOCAL_RANKID", "SLURM_LOCALID")


@pytest.mark.parametrize("name", LOCAL_RANK)
def test_each_rank_gets_one_gpu(node: Site, name: str) -> None:
    for rank in range(4):
        assert one_rank(node, **{name: str(rank)}).stdout == f"{rank}\n"
        reverse = one_rank(node, **{name: str(rank), "GPU_ORDER": "reversed"})
        assert reverse.stdout == f"{3 - rank}\n"


def test_ranks_share_what_the_job_may_see(node: Site) -> None:
    some = {"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb", "HOROVOD_LOCAL_RANK": "1"}
    assert one_rank(node, **some).stdout == "GPU-bb\n"
    assert one_rank(node, **some, GPU_ORDER="reversed").stdout == "GPU-aa\n"
    # mpirun in a batch job: Slurm's own variable is that of the script, 0
    assert one_rank(node, SLURM_LOCALID="0", OMPI_COMM_WORLD_LOCAL_RANK="2").stdout == "2\n"


def test_more_ranks_than_gpus(node: Site) -> None:
    told = complaint(one_rank(node, HOROVOD_LOCAL_RANK="4"))
    assert told == "no GPU for local rank 4, this node shows 4: set RANKS"


def test_without_a_gpu_nothing_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    site = SimpleNamespace(bin=tmp_path / "bin")
    if shutil.which("nvidia-smi", path="/usr/bin:/bin"):
        pytest.skip("this machine has nvidia-smi")
    assert one_rank(site, "bash", "-c", 'echo "${CUDA_VISIBLE_DEVICES-unset}"').stdout == "unset\n"


def test_a_rank_stays_on_its_cores(node: Site) -> None:
    mine = sorted(os.sched_getaffinity(0))
    wanted = [str(mine[0]), str(mine[-1])]
    ask = ("python3", "-c", "import os; print(*os.sched_getaffinity(0))")
    for rank, core in enumerate(wanted):
        told = one_rank(node, *ask, HOROVOD_LOCAL_RANK=str(rank), CORES=" ".join(wanted))
        assert told.stdout.split() == [core]


def test_what_is_written_in_a_number_is_not_run(node: Site, tmp_path: Path) -> None:
    """Bash's arithmetic would: a[$(command)]."""
    value = f"a[$(touch {tmp_path}/ran)]"
    job = Site(tmp_path / "job", "apptainer")
    for name, said in (
        ("RANKS", f"RANKS={value}: must be a number, the ranks on each node"),
        ("SLURM_JOB_NUM_NODES", f"{value} nodes: must be a number"),
    ):
        assert complaint(job.run("slurm.sbatch", "02", **{"RANKS": "4", name: value})) == said
    for name in LOCAL_RANK:
        told = complaint(one_rank(node, **{name: value}))
        assert told == f"{name}={value} is not the number of a rank: unset it"
    assert not (tmp_path / "ran").exists()


# --- everything about a device in one job, and how it is taken in ---

# Stands in for every stage: the device's training takes no time, and its results are this CPU's
# under a GPU's name. Slurm, the job, ./workshop and choose.py are real.
STAND_IN = """\
import json, shutil, sys
from pathlib import Path
def option(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""
rows = json.loads(Path({ladder!r}).read_text())["rows"]
row = next(row for row in rows if row["stage"] == {stage!r}) | {{"device": "NVIDIA A100-SXM4-40GB"}}
if option("--results"):
    Path(option("--results")).write_text(json.dumps(row))
if option("--logdir"):
    shutil.copytree({sample!r}, option("--logdir"), dirs_exist_ok=True)
"""
# Not NVIDIA's: answers only the question of the job, so that nothing else believes in a GPU.
NVIDIA_SMI = """\
#!/bin/sh
case $1 in --query-gpu=timestamp,*) echo "2027/01/01 12:00:00.000, 0, 61.50, 1410, 1215, 31";;
*) exit 9;; esac
"""


@pytest.mark.usefixtures("pages")  # in tmp_path
def test_everything_in_one_job(
    site: SimpleNamespace, mnist: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Two parts of it fail: the others are there, a line says which, and it can be taken in."""
    repo = checkout(tmp_path / "workshop")
    for stage in STAGES:
        facts = {"ladder": str(results.quoted() / "ladder.json"), "stage": stage.name}
        text = STAND_IN.format(**facts, sample=str(ROOT / "04_tf_profiler" / "sample"))
        (repo / stage.folder / stage.file).write_text(text)
    measured = repo / "tfworkshop" / "ladder" / "ceiling.py"
    text = measured.read_text().replace("json.dumps(multiply())", "json.dumps({'float32': 2e13})")
    measured.write_text(text)
    (repo / "tfworkshop" / "ladder" / "keras_fit.py").unlink()  # bench cannot work, nor can the
    assert not (repo / "requirements.txt").exists()  # doctor, which compares with this
    (repo / "data").mkdir()
    (repo / "data" / "mnist.npz").symlink_to(mnist.resolve())
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.write_text(NVIDIA_SMI)
    tool.chmod(0o755)
    env = {**site.env, "RANKS": "1", "PATH": f"{tool.parent}:{site.env['PATH']}"}
    env["WORKSHOP_CACHE"] = str(tmp_path / "cache")
    env.pop("MNIST_NPZ")
    words = ("-A", "myproject", "submit/slurm.sbatch", "all", "--steps", "20", "--repeats", "1")
    process = site.cluster.run("sbatch", "--parsable", *words, cwd=repo, env=env)
    assert process.returncode == 0, process.stderr
    number = process.stdout.strip()
    info = wait_for(site.cluster, number)
    output = (repo / f"workshop-{number}.out").read_text()
    folder = repo / "results" / f"all-{number}"
    assert (info["JobState"], info["ExitCode"]) == ("FAILED", "1:0"), output
    assert output.endswith("submit: of these, failed: doctor bench\n"), output

    parts = (folder / "parts.txt").read_text()
    done = re.sub(r", \d+ s$", "", parts, flags=re.M).splitlines()
    assert done == [
        "doctor: FAILED with exit status 1, see doctor.txt",
        *(f"{name}: done" for name in ("ladder", "profile_02", "profile_06")),
        "bench: FAILED with exit status 1, see bench.txt",
        "scale: done",
        "gpu: done, power and clocks are in gpu.csv",
    ]
    assert "keras_fit" in (folder / "bench.txt").read_text()
    assert "requirements.txt" in (folder / "doctor.txt").read_text()
    assert "NVIDIA A100-SXM4-40GB" in (folder / "ladder.md").read_text()
    assert (folder / "gpu.csv").read_text().count("61.50, 1410") >= 2
    profiles = {path.parents[3].name for path in folder.rglob("*.xplane.pb")}
    assert profiles == {
        "02_as_04_without_xla",
        "04_tf_profiler",
        "05_reduced_precision",
        "06_optimized",
    }

    # xray and report take a while, and have tests of their own.
    xray = (results.KEPT / "xray.json").read_text()
    monkeypatch.setattr(results, "predict", lambda path: path.write_text(xray))
    monkeypatch.setattr(results, "summary", lambda folder, number: {"step_ms": 1.0})
    assert results.run(keep=str(folder), write=True) == 0, capsys.readouterr().err
    kept = {path.name for path in (tmp_path / "measured" / "nvidia-a100-sxm4-40gb").iterdir()}
    assert kept == {"ladder.json", "scale_06_64.json", "gpu.json"} | {
        "profile_04.json",
        "profile_05.json",
    }
    shown = (tmp_path / "RESULTS.md").read_text()
    assert "### NVIDIA A100-SXM4-40GB" in shown and "SM clock (MHz) 1,410" in shown


# --- at last: how the job ended whose cable was cut, long before now ---


@needs_mpi
def test_a_cut_cable_ends_the_job(site: SimpleNamespace, cut: SimpleNamespace) -> None:
    info = wait_for(site.cluster, cut.number, 90)
    assert info["JobState"] == "NODE_FAIL"
    assert datetime.fromisoformat(info["EndTime"]) - cut.cut < timedelta(seconds=60)
    output = cut.log.read_text()
    assert re.search(r"^srun: error: Node failure on n2$", output, flags=re.M), output
    assert not list((site.folder / "results").glob(f"*-np2-{cut.number}.json"))
    end = time.monotonic() + 10
    while len(left := site.cluster.processes("n1")) > 2 and time.monotonic() < end:
        time.sleep(0.2)
    assert len(left) == 2, left  # the host itself, and slurmd
