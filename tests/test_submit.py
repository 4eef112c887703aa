"""The job scripts: under a real Slurm, and the commands that PBS and Cobalt jobs would start.

PBS Pro and Cobalt are in no Debian release, so their scripts run here with the scheduler's
variables and with programs that write down how they were called. That shows what the scripts do,
not that Polaris accepts it.
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

from tests import slurm
from tests.conftest import LOG_LINE, ROOT, read_results, stage_environment
from tfworkshop.stages import STAGES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def checkout(folder: Path) -> Path:
    """The workshop as a user has it, without results: jobs write into the folder they start in."""
    for name in ("submit", "tfworkshop", *{stage.folder for stage in STAGES}):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("workshop", "requirements.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


# --- a real Slurm ---


def has_mpi() -> bool:
    """Whether Horovod is linked with an MPI. Asking Horovod itself would start TensorFlow."""
    package = find_spec("horovod")
    libraries = Path(package.origin).parent.glob("tensorflow/mpi_lib*.so") if package else ()
    return any(b"libmpi.so" in library.read_bytes() for library in libraries)


MPI = has_mpi()
needs_mpi = pytest.mark.skipif(not MPI, reason="Horovod is built without MPI: no mpicxx was found")


@pytest.fixture(scope="module")
def site(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A cluster, and a checkout on it, with this Python in the container's place."""
    problem = slurm.why_not()
    if problem:
        pytest.skip(problem)
    folder = checkout(tmp_path_factory.mktemp("slurm") / "workshop")
    with slurm.Cluster() as cluster:
        env = stage_environment(
            PATH=slurm.PLACES,
            SLURM_CONF=cluster.environment["SLURM_CONF"],
            CONTAINER="none",
            WORKSHOP_VENV=sys.prefix,
            MNIST_NPZ=str(small),
            TF_NUM_INTRAOP_THREADS="1",
            TF_NUM_INTEROP_THREADS="1",
            HOROVOD_SIZE="7",  # left over from another session: the job must not mind
        )
        yield SimpleNamespace(cluster=cluster, folder=folder, env=env)


def submit(site: SimpleNamespace, *words: str, **extra: str) -> SimpleNamespace:
    command = ("sbatch", "--parsable", "-A", "myproject", *words)
    process = site.cluster.run(*command, cwd=site.folder, env={**site.env, **extra})
    assert process.returncode == 0, process.stderr
    number = process.stdout.strip()
    return SimpleNamespace(number=number, log=site.folder / f"workshop-{number}.out")


def wait_for(cluster: slurm.Cluster, number: str) -> dict[str, str]:
    """What Slurm says about a job when it has ended."""
    while True:
        text = cluster.run("scontrol", "show", "job", number).stdout
        info = dict(re.findall(r"(\S+?)=(\S+)", text))
        if info.get("JobState") not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"):
            return info
        time.sleep(0.5)


def run_job(site: SimpleNamespace, *words: str, **extra: str) -> SimpleNamespace:
    job = submit(site, *words, **extra)
    job.info = wait_for(site.cluster, job.number)
    job.output = job.log.read_text()
    return job


def test_slurm_trains_on_two_ranks(site: SimpleNamespace) -> None:
    """Stage 02, submitted as submit/README.md says."""
    pytest.importorskip("horovod")
    words = ("submit/slurm.sbatch", "02", "--steps", "20", "--batch-size", "32")
    job = run_job(site, *words, RANKS="2", TIMELINE="1")
    directives = {
        "JobName": "workshop",
        "Account": "myproject",  # from the command line, in the place of CHANGE_ME
        "Features": "gpu",
        "NumTasks": "4",
        "CPUs/Task": "32",
        "TimeLimit": "00:15:00",
        "StdOut": str(job.log),
    }
    assert directives.items() <= job.info.items()
    assert (job.info["JobState"], job.info["ExitCode"]) == ("COMPLETED", "0:0"), job.output
    plain = re.sub(r"^\[(1,)?0\]<stdout>:", "", job.output, flags=re.M)  # 1,: Open MPI's
    assert len(LOG_LINE.findall(plain)) == 20
    assert not re.search(r"^\[(1,)?1\]<stdout>", job.output, flags=re.M)  # only rank 0 has a log
    file = site.folder / "results" / f"02_tf_function-np2-{job.number}.json"
    results = read_results(file)
    assert (results["stage"], results["ranks"], results["batch_size"]) == ("02_tf_function", 2, 32)
    assert job.output.endswith(f"submit: results in {file}\n")
    assert "_ALLREDUCE" in file.with_suffix(".timeline.json").read_text()


def test_slurm_takes_the_commands_of_the_readme(site: SimpleNamespace) -> None:
    """Every sbatch and srun line of submit/README.md, with a project in."""
    text = (ROOT / "submit" / "README.md").read_text().replace("<project>", "myproject")
    blocks = "".join(re.findall(r"^```bash\n(.*?)^```", text, flags=re.M | re.S))
    commands = re.findall(r"^(?:\w+=\S+ )*(?:sbatch|srun) .*", blocks, flags=re.M)
    commands += re.findall(r"`((?:\w+=\S+ )*sbatch -A [^`]+ \d\d)`", text)
    assert len(commands) == 5
    wrong = "sbatch --gpus-per-node=5 submit/slurm.sbatch 02"  # more than a node has
    for command in [*commands, wrong]:
        tried = re.sub(r"(sbatch|srun) ", r"\1 --test-only ", command, count=1)
        process = site.cluster.run("bash", "-c", tried, cwd=site.folder, env=site.env)
        assert (process.returncode != 0) == (command == wrong), f"{command}: {process.stderr}"


def test_ranks_that_do_not_find_each_other_stop(site: SimpleNamespace) -> None:
    """srun starts one rank on each of two nodes, and nothing joins them: no PMIx, or no MPI."""
    words = ("-N", "2", "submit/slurm.sbatch", "02", "--steps", "5")
    job = run_job(site, *words, RANKS="1", PMI="none")
    assert job.info["JobState"] == "FAILED"
    reason = "Horovod has joined 1 of 2 processes"
    assert ("OMPI was not built with SLURM's PMI support" if MPI else reason) in job.output
    assert job.output.endswith("submit: the training ended with exit status 1\n")
    assert not list((site.folder / "results").glob(f"*-{job.number}.json"))


@needs_mpi
def test_mpirun_instead_of_horovodrun(site: SimpleNamespace) -> None:
    """One core for each rank is more than a machine may have; and here a user is root."""
    launcher = "mpirun --oversubscribe --allow-run-as-root -np 2"
    words = ("submit/slurm.sbatch", "06", "--steps", "10", "--batch-size", "32")
    extra = {"RANKS": "2", "LAUNCHER": launcher, "CHOOSE": "0", "TIMELINE": "1"}
    job = run_job(site, *words, **extra)
    assert job.info["JobState"] == "COMPLETED", job.output
    assert len(LOG_LINE.findall(job.output)) == 10
    file = site.folder / "results" / f"06_optimized-np2-{job.number}.json"
    assert read_results(file)["ranks"] == 2
    assert "MPI_ALLREDUCE" in file.with_suffix(".timeline.json").read_text()


@needs_mpi
def test_two_nodes_train_as_one(site: SimpleNamespace, tmp_path: Path) -> None:
    """06 as submit/README.md says; watched.py writes down how each rank ended."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    watched = f"PYTHONPATH={ROOT}:{ROOT}/tests exec {sys.executable} {ROOT}/tests/watched.py"
    python.write_text(f'#!/bin/sh\n{watched} "$@"\n')
    python.chmod(0o755)
    before = [site.cluster.received(node) for node in slurm.NODES]
    words = ("-N", "2", "submit/slurm.sbatch", "06", "--steps", "10", "--batch-size", "32")
    extra = {"RANKS": "1", "CHOOSE": "0", "WORKSHOP_VENV": str(tmp_path)}
    job = run_job(site, *words, **extra)
    assert job.info["JobState"] == "COMPLETED", job.output
    for node, bytes_before in zip(slurm.NODES, before):
        sent = site.cluster.received(node) - bytes_before
        assert sent > 48e6  # 4.8 MB of gradients in each of ten steps
    zero, one = (json.loads((site.folder / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert (zero["host"], one["host"]) == slurm.NODES
    assert zero["made"] != one["made"] and zero["before"] == one["before"]
    assert zero["digest"] == one["digest"] != zero["before"]
    assert zero["losses"] == one["losses"] and len(zero["losses"]) == 10
    results = read_results(site.folder / "results" / f"06_optimized-np2-{job.number}.json")
    assert (results["ranks"], results["final_loss"]) == (2, zero["losses"][-1])


def test_interactive_job(site: SimpleNamespace) -> None:
    """The script itself, typed in a shell that srun gave; no launcher for one rank."""
    words = ("srun", "-n", "1", "submit/slurm.sbatch", "02", "--steps", "2")
    env = {**site.env, "RANKS": "1", "LAUNCHER": ""}
    process = site.cluster.run(*words, cwd=site.folder, env=env, timeout=240)
    assert process.returncode == 0, process.stdout + process.stderr
    (path,) = (site.folder / "results").glob("02_tf_function-np1-*.json")
    assert read_results(path)["ranks"] == 1


# --- PBS, Cobalt, and containers: which commands are started ---

STUB = """\
#!{python}
# Writes down how it was called; what would train leaves results as a stage does.
import json, os, sys
from pathlib import Path
call = {{"words": ["{name}", *sys.argv[1:]], "env": dict(os.environ)}}
with open("{calls}", "a") as file:
    file.write(json.dumps(call) + "\\n")
if "--results" in sys.argv and os.environ["STUB_RANKS"]:
    results = {{"stage": "x", "ranks": int(os.environ["STUB_RANKS"]), "batch_size": 64}}
    path = Path(sys.argv[sys.argv.index("--results") + 1])
    path.write_text(json.dumps(results, indent=2))
if any(word.endswith("/choose.py") for word in sys.argv):
    print("--xla on --steps-per-call 50")
if "run" in sys.argv:
    ladder = {{"rows": [{{"stage": "06_optimized", "switches": "--xla off"}}]}}
    Path(os.environ["WORKSHOP_RESULTS"], "ladder.json").write_text(json.dumps(ladder, indent=1))
sys.exit(3 if os.environ.get("STUB_FAILS") in sys.argv else 0)
"""
ANSWERS = {  # programs that a script asks something
    "nvidia-smi": 'for i in 0 1 2 3; do case $1 in -L) echo "GPU $i: NVIDIA A100-SXM4-40GB";; '
    "*) echo $i;; esac; done",
    "qstat": 'echo "    Account_Name = ${STUB_PROJECT:-myproject}"',
}


class Site:
    """A checkout, an image, data, and a PATH of programs that only take notes."""

    def __init__(self, folder: Path, engine: str = "apptainer", nodes: int = 1) -> None:
        self.repo = checkout(folder / "workshop")
        self.calls = folder / "calls"
        self.bin = folder / "bin"
        self.nodes = folder / "nodes"
        self.image = self.repo / "container" / "workshop.sif"
        self.data = self.repo / "data" / "mnist.npz"
        for path in (self.image, self.data):
            path.parent.mkdir()
            path.touch()
        self.bin.mkdir()
        for name in (engine, "module", "horovodrun", "mpiexec", "mpirun", "srun", "shifter"):
            self.add(name, STUB.format(python=sys.executable, name=name, calls=self.calls))
        for name, answer in ANSWERS.items():
            self.add(name, f"#!/bin/bash\n{answer}\n")
        self.nodes.write_text("".join(f"x{node}\n" for node in range(nodes)))
        self.variables = {
            "HOME": "/",
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "PYTHONPATH": "/from/a/module",
            "CHOOSE": "0",
            "STUB_RANKS": "4",
            "PBS_JOBID": "1234567.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov",
            "PBS_O_WORKDIR": str(self.repo),
            "PBS_NODEFILE": str(self.nodes),
            "COBALT_JOBID": "1234567",
            "COBALT_NODEFILE": str(self.nodes),
            "SLURM_JOB_ID": "1234567",
            "SLURM_SUBMIT_DIR": str(self.repo),
            "SLURM_JOB_NUM_NODES": str(nodes),
            "SLURM_CPUS_PER_TASK": "32",
        }

    def add(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, script: str, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self.repo / "submit" / script), *words],
            cwd=self.repo if script == "thetagpu.cobalt" else Path("/"),
            env={**self.variables, **extra},
            capture_output=True,
            text=True,
        )

    def run(self, script: str, *words: str, **extra: str) -> str:
        """What a script prints that ends well."""
        process = self.start(script, *words, **extra)
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    def complaint(self, script: str, *words: str, **extra: str) -> str:
        return complaint(self.start(script, *words, **extra))

    def log(self) -> list[dict]:
        return [json.loads(line) for line in self.calls.read_text().splitlines()]

    def commands(self) -> list[list[str]]:
        return [call["words"] for call in self.log()]

    def training(self, stage: str, ranks: int, *options: object) -> list[str]:
        """The words that must come after launcher and container."""
        words = [f"{self.repo}/submit/one_rank.sh", "python3"]
        words += [f"{self.repo}/{stage}/train_MNIST.py", "--data", str(self.data)]
        words += ["--results", f"{self.repo}/results/{stage}-np{ranks}-1234567.json"]
        return [*words, *map(str, options)]


@pytest.fixture
def stub(tmp_path: Path) -> Site:
    return Site(tmp_path)


def complaint(process: subprocess.CompletedProcess[str]) -> str:
    """The one line that a script fails with."""
    assert process.returncode == 1, process.stdout + process.stderr
    assert re.fullmatch(r"submit: [^\n]+\n", process.stderr), process.stderr
    return process.stderr.removeprefix("submit: ").rstrip("\n")


APPTAINER = "apptainer exec --nv -B {repo} {image}"
POLARIS = "apptainer exec --nv --fakeroot -B {repo} {image}"
PALS = "mpiexec --hostfile {nodes} -n 8 --ppn 4 --depth=8 --cpu-bind depth apptainer exec --nv"
PALS += " --fakeroot -B {repo} -B /opt -B /soft -B /var/run/palsd {image}"
THETA = "singularity exec --nv -B {repo} -B /lus {image}"
THETA_MPI = "mpirun -hostfile {nodes} -n 8 -npernode 4 singularity exec --nv"
THETA_MPI += " -B {repo} -B /lus -B /site/openmpi {image}"
SRUN = "srun --mpi=pmix --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=32"
SRUN += " --cpu-bind=cores apptainer exec --nv -B {repo} {image}"
SHIFTER = "shifter --image=a:b"


@pytest.mark.parametrize(
    ("script", "nodes", "variables", "launch"),
    [
        ("polaris.pbs", 1, {}, f"{POLARIS} horovodrun -np 4"),
        ("polaris.pbs", 1, {"RANKS": "1"}, f"{POLARIS} horovodrun -np 1"),
        ("polaris.pbs", 2, {"MPICH": "1"}, PALS),
        ("thetagpu.cobalt", 1, {}, f"{THETA} horovodrun -np 4"),
        ("thetagpu.cobalt", 2, {"MPI_BASE": "/site/openmpi"}, THETA_MPI),
        ("slurm.sbatch", 1, {"SLURM_GPUS_ON_NODE": "4"}, f"{APPTAINER} horovodrun -np 4"),
        ("slurm.sbatch", 2, {"RANKS": "2"}, SRUN),
        ("slurm.sbatch", 1, {"LAUNCHER": "mpirun -np 4"}, f"{APPTAINER} mpirun -np 4"),
        ("slurm.sbatch", 1, {"ENTER": SHIFTER}, f"{SHIFTER} horovodrun -np 4"),
        ("slurm.sbatch", 1, {"CONTAINER": "none"}, "horovodrun -np 4"),
    ],
)
def test_the_command_of_a_job(tmp_path, script, nodes, variables, launch) -> None:
    engine = "singularity" if script == "thetagpu.cobalt" else "apptainer"
    site = Site(tmp_path, engine, nodes)
    ranks = nodes * int(variables.get("RANKS", 4))
    output = site.run(script, "02", "--steps", "500", STUB_RANKS=str(ranks), **variables)
    start = launch.format(repo=site.repo, image=site.image, nodes=site.nodes)
    training = site.training("02_tf_function", ranks, "--steps", 500)
    assert site.commands()[-1] == [*start.split(), *training]
    results = site.repo / "results" / f"02_tf_function-np{ranks}-1234567.json"
    assert output.endswith(f"submit: results in {results}\n")


def test_what_the_scripts_load_and_export(stub: Site) -> None:
    # PBS passes no arguments to a script, but variables.
    stub.run("polaris.pbs", STAGE="04", OPTIONS="--steps 500", TIMELINE="1")
    modules = ["use /soft/modulefiles", "load spack-pe-base", "load apptainer"]
    assert stub.commands()[:-1] == [["module", *module.split()] for module in modules]
    assert stub.commands()[-1][-2:] == ["--steps", "500"]
    env = stub.log()[-1]["env"]
    assert (env["GPU_ORDER"], env["CORES"].split()[1]) == ("reversed", "8-15,40-47")
    assert env["https_proxy"] == "http://proxy.alcf.anl.gov:3128"
    name = f"{stub.repo}/results/04_tf_profiler-np4-1234567"
    assert env["HOROVOD_TIMELINE"] == f"{name}.timeline.json" and "PYTHONPATH" not in env

    stub.run("thetagpu.cobalt", "02")
    assert stub.log()[-1]["env"]["GPU_ORDER"] == "straight"
    stub.calls.unlink()
    stub.run("slurm.sbatch", "02", CONTAINER="none", MODULES="tensorflow/2.17 cuda")
    assert stub.commands()[0] == ["module", "load", "tensorflow/2.17", "cuda"]
    env = stub.log()[-1]["env"]
    assert (env["OMPI_MCA_plm"], env["PYTHONPATH"]) == ("^slurm", "/from/a/module")


def test_the_conda_module_of_polaris(stub: Site, tmp_path: Path) -> None:
    """One process of the module's Python: the site has no Horovod, and needs no container."""
    for name in ("apptainer", "horovodrun"):
        (stub.bin / name).unlink()
    stub.add("conda", STUB.format(python=sys.executable, name="conda", calls=stub.calls))
    python = tmp_path / "conda" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text(STUB.format(python=sys.executable, name=python, calls=stub.calls))
    python.chmod(0o755)
    venv = stub.repo / ".venv" / "bin" / "python3"  # made on a login node, without a GPU
    venv.parent.mkdir(parents=True)
    shutil.copy(stub.bin / "nvidia-smi", venv)
    variables = {"CONTAINER": "none", "STUB_RANKS": "1", "CONDA_PREFIX": str(tmp_path / "conda")}
    variables["CORES"] = ""  # those of Polaris may not exist here
    stub.run("polaris.pbs", STAGE="02", OPTIONS="--steps 500", **variables)
    assert stub.commands() == [
        ["module", "use", "/soft/modulefiles"],
        ["module", "load", "conda"],
        ["conda", "activate", "base"],
        [str(python), *stub.training("02_tf_function", 1, "--steps", 500)[2:]],
    ]
    assert stub.log()[-1]["env"]["CUDA_VISIBLE_DEVICES"] == "3"
    stub.run("polaris.pbs", "02", MODULES="conda/2025-09-25", **variables)
    assert ["module", "load", "conda/2025-09-25"] in stub.commands()
    stub.calls.unlink()
    assert "has no Horovod" in stub.complaint("polaris.pbs", "02", RANKS="2", **variables)


def test_nccl_on_the_network_of_polaris(tmp_path: Path) -> None:
    site = Site(tmp_path, nodes=2)
    extra = {"MPICH": "1", "STUB_RANKS": "8", "CRAY_LD_LIBRARY_PATH": "/opt/cray/lib"}
    site.run("polaris.pbs", "02", **extra)
    assert ["module", "load", "cray-mpich-abi"] in site.commands()
    env = site.log()[-1]["env"]
    assert (env["NCCL_NET"], env["FI_MR_CACHE_MONITOR"]) == ("AWS Libfabric", "userfaultfd")
    folders = env["APPTAINERENV_LD_LIBRARY_PATH"].split(":")
    assert folders[0] == "/soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib"
    assert folders[2:] == ["/opt/cray/lib", "", f"{tmp_path}/lib"]
    site.run("polaris.pbs", "02", NCCL_PLUGIN="/my/plugin", **extra)
    assert site.log()[-1]["env"]["APPTAINERENV_LD_LIBRARY_PATH"].startswith("/my/plugin/lib:")


def test_every_pbs_directive_is_explained() -> None:
    """In one block without comments, as PBS wants it, and then in words, in the same order."""
    text = (ROOT / "submit" / "polaris.pbs").read_text()
    block, _, explained = text.partition("\n\n")
    first, *directives = block.splitlines()
    assert first == "#!/bin/bash -l"
    names = [re.fullmatch(r"#PBS (?:-l (\w+)=\S+|(-\w)(?: \S+)?)", line) for line in directives]
    assert all(names) and "#PBS -l singularity_fakeroot=true" in directives
    lines = explained.partition("\n\n")[0].splitlines()[1:]
    assert [match[1] or match[2] for match in names if match] == [line.split()[1] for line in lines]


def test_06_chooses_its_switches_before_the_ranks_start(stub: Site) -> None:
    container = APPTAINER.format(repo=stub.repo, image=stub.image).split()
    choose = [*container, "python3", f"{stub.repo}/06_optimized/choose.py"]
    launch = [*container, "horovodrun", "-np", "4"]
    stub.run("slurm.sbatch", "06", "--batch-size", "256", CHOOSE="1")
    options = ["--xla", "on", "--steps-per-call", 50, "--batch-size", 256]
    assert stub.commands() == [
        [*choose, "--data", str(stub.data), "--batch-size", "256"],
        [*launch, *stub.training("06_optimized", 4, *options)],
    ]
    stub.run("slurm.sbatch", "06", CHOOSE="1", STUB_FAILS=choose[-1])  # then it has its defaults
    assert stub.commands()[-1] == [*launch, *stub.training("06_optimized", 4)]
    stub.calls.unlink()
    stub.run("slurm.sbatch", "06", "--xla", "off", CHOOSE="1")
    assert stub.commands() == [[*launch, *stub.training("06_optimized", 4, "--xla", "off")]]


def test_files_outside_the_repository_are_mounted(stub: Site, tmp_path: Path) -> None:
    data = tmp_path / "elsewhere" / "mnist.npz"
    data.parent.mkdir()
    data.touch()
    (tmp_path / "link").symlink_to(stub.repo)
    extra = {"SLURM_SUBMIT_DIR": str(tmp_path / "link"), "MNIST_NPZ": str(data)}
    extra |= {"WORKSHOP_RESULTS": str(tmp_path / "out"), "CONTAINER": "container/workshop.sif"}
    stub.run("slurm.sbatch", "02", **extra)
    mounts = ["-B", stub.repo, "-B", data.parent, "-B", tmp_path / "out", "container/workshop.sif"]
    assert stub.commands()[-1][3:10] == [str(word) for word in mounts]


def test_everything_in_one_job(stub: Site) -> None:
    """A part fails: the others are there, and the job says which."""
    stub.add("module", "#!/bin/sh\n")
    variables = {"STAGE": "all", "OPTIONS": "--steps 50 --batch-size 256", "STUB_FAILS": "bench"}
    assert stub.complaint("polaris.pbs", **variables) == "of these, failed: bench"
    repo, folder = str(stub.repo), stub.repo / "results" / "all-1234567"
    container = POLARIS.format(repo=repo, image=stub.image).split()
    given = variables["OPTIONS"].split()
    short = ["--data", str(stub.data), "--steps", "30", "--batch-size", "256", "--xla", "off"]
    profile_02 = [*short, "--logdir", f"{folder}/logs/02_as_04_without_xla"]
    profile_06 = [*short, "--logdir", f"{folder}/logs/06_optimized"]
    assert [words[len(container) :] for words in stub.commands()] == [
        [f"{repo}/workshop", "doctor"],
        [f"{repo}/workshop", "run", "--steps", "200", "--repeats", "3", *given],
        ["python3", f"{repo}/04_tf_profiler/train_MNIST.py", *profile_02],
        ["python3", f"{repo}/06_optimized/train_MNIST.py", *profile_06],
        [f"{repo}/workshop", "bench", *given],
        [f"{repo}/workshop", "scale", "--ranks", "1", "2", "4", *given],
    ]
    assert {call["env"]["WORKSHOP_RESULTS"] for call in stub.log()} == {str(folder)}
    assert {call["env"]["WORKSHOP_PYTHON_ENV"] for call in stub.log()} == {"system"}
    parts = re.sub(r", \d+ s$", "", (folder / "parts.txt").read_text(), flags=re.M)
    assert parts.splitlines() == [
        *(f"{name}: done" for name in ("doctor", "ladder", "profile_02", "profile_06")),
        "bench: FAILED with exit status 3, see bench.txt",
        "scale: done",
        "gpu: done, power and clocks are in gpu.csv",
    ]
    assert stub.complaint("polaris.pbs", **variables).startswith(f"{folder} exists")


def test_every_stage_by_number_and_by_folder(stub: Site) -> None:
    for stage in {stage.folder: stage for stage in STAGES}.values():  # the last of a folder
        for name in (stage.number, stage.folder):
            output = stub.run("slurm.sbatch", name)
            assert str(stage.script.relative_to(ROOT)) in output
            assert ("--logdir" in stub.commands()[-1]) == stage.profiles


# --- what people do wrong ---


@pytest.mark.parametrize(
    ("words", "extra", "line"),
    [
        ([], {}, "name a stage first, 00 to 06 or all, not ''"),
        (["07"], {}, "no stage 07. The stages are 00 to 06"),
        (["02"], {"PROFILE": "1"}, "PROFILE=1 is for stages 04, 05 and 06"),
        (["02"], {"RANKS": "two"}, "RANKS=two: must be a number, the ranks on each node"),
        (["02"], {"CONTAINER": "/no/x.sif"}, "no image at /no/x.sif: build it (container/README"),
        (["02"], {"STUB_RANKS": "1"}, "4 ranks requested, Horovod saw 1"),
        (["02"], {"STUB_FAILS": "horovodrun"}, "the training ended with exit status 3"),
        (["02"], {"STUB_RANKS": ""}, "the training wrote no results"),
        (["all"], {"SLURM_JOB_NUM_NODES": "2"}, "all is for one node; name a stage"),
        (["all", "--stages", "02"], {}, "all takes --steps, --repeats and --batch-size, each"),
        (["02"], {"PATH": "/usr/bin:/bin"}, "no GPU on this node"),
        (
            ["02"],
            {"PATH": "/usr/bin:/bin", "RANKS": "4"},
            "neither apptainer nor singularity is on PATH",
        ),
    ],
)
def test_one_clear_line(words: list[str], extra: dict, line: str, stub: Site) -> None:
    assert stub.complaint("slurm.sbatch", *words, **extra).startswith(line)
    assert "STUB_FAILS" in extra or not list(stub.repo.glob("results/*"))


@pytest.mark.parametrize("script", ["slurm.sbatch", "polaris.pbs", "thetagpu.cobalt"])
def test_each_script_knows_its_batch_system(script: str, tmp_path: Path) -> None:
    site = Site(tmp_path, nodes=2)
    project = {"STUB_PROJECT": "CHANGE_ME", "COBALT_PROJECT": "CHANGE_ME"}
    project["SLURM_JOB_ACCOUNT"] = "change_me"
    command = "sbatch" if script == "slurm.sbatch" else "qsub"
    assert f"{command} -A PROJECT" in site.complaint(script, "02", **project)
    unset = {"SLURM_JOB_ID": "", "PBS_JOBID": "", "COBALT_JOBID": ""}
    assert f"this is not a job: type {command}" in site.complaint(script, "02", **unset)
    if script == "polaris.pbs":
        assert "one node only" in site.complaint(script, "02")
    (site.repo / "submit" / "common.sh").unlink()
    assert "is not the workshop: cd to its top folder" in site.complaint(script, "02")


def test_missing_data_is_fetched_in_the_container(stub: Site) -> None:
    stub.data.unlink()
    assert stub.complaint("polaris.pbs", "02").startswith(f"no data at {stub.data}")
    fetch = ["env", "WORKSHOP_PYTHON_ENV=system", f"{stub.repo}/workshop", "data"]
    assert stub.commands()[-1][-4:] == fetch and stub.commands()[-1][0] == "apptainer"


# --- one rank ---

LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "HOROVOD_LOCAL_RANK", "PMI_LOCAL_RANK")
LOCAL_RANK += ("PALS_LOCAL_RANKID", "SLURM_LOCALID")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("node"))


def one_rank(site: Site, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    command = words or ("bash", "-c", 'echo "${CUDA_VISIBLE_DEVICES-unset}"')
    env = {"PATH": f"{site.bin}:/usr/bin:/bin", **extra}
    script = str(ROOT / "submit" / "one_rank.sh")
    return subprocess.run([script, *command], env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("variables", "gpu"),
    [
        *(({name: "1"}, "1") for name in LOCAL_RANK),
        ({"HOROVOD_LOCAL_RANK": "1", "GPU_ORDER": "reversed"}, "2"),
        ({"HOROVOD_LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"}, "GPU-bb"),
        # mpirun in a batch job: Slurm's own variable is that of the script, 0
        ({"SLURM_LOCALID": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "2"),
        ({"PATH": "/usr/bin:/bin"}, "unset"),  # no nvidia-smi, no GPU
    ],
)
def test_each_rank_gets_one_gpu(node: Site, variables: dict[str, str], gpu: str) -> None:
    assert one_rank(node, **variables).stdout == f"{gpu}\n"


@pytest.mark.parametrize(("rank", "gpus"), [("4", "0,1,2,3"), ("1", "0")])
def test_two_ranks_never_share_a_gpu(node: Site, rank: str, gpus: str) -> None:
    process = one_rank(node, HOROVOD_LOCAL_RANK=rank, CUDA_VISIBLE_DEVICES=gpus)
    assert complaint(process).startswith(f"no GPU for local rank {rank}")


def test_a_rank_stays_on_its_cores(node: Site) -> None:
    available = sorted(os.sched_getaffinity(0))
    cores = [str(available[0]), str(available[-1])]
    ask = ("python3", "-c", "import os; print(*os.sched_getaffinity(0))")
    for rank, core in enumerate(cores):
        process = one_rank(node, *ask, HOROVOD_LOCAL_RANK=str(rank), CORES=" ".join(cores))
        assert process.stdout.split() == [core]


def test_a_command_in_place_of_a_number_is_not_executed(node: Site, tmp_path: Path) -> None:
    """Bash's arithmetic would: a[$(command)]."""
    value = f"a[$(touch {tmp_path}/executed)]"
    for name in ("RANKS", "SLURM_JOB_NUM_NODES"):
        assert "must be a number" in node.complaint("slurm.sbatch", "02", **{name: value})
    for name in LOCAL_RANK:
        assert "is not the number of a rank" in complaint(one_rank(node, **{name: value}))
    assert not (tmp_path / "executed").exists()


# --- the last job, for it loses a node ---


@needs_mpi
def test_a_slow_cable_shows_in_the_report_and_a_cut_one_ends_the_job(site: SimpleNamespace) -> None:
    cluster = site.cluster
    is_slow = cluster.slow("n2", "200mbit")
    words = ("-N", "2", "submit/slurm.sbatch", "02", "--steps", "1000", "--batch-size", "16")
    job = submit(site, *words, RANKS="1", TIMELINE="1")
    timeline = site.folder / "results" / f"02_tf_function-np2-{job.number}.timeline.json"
    end = time.monotonic() + 120
    while not job.log.exists() or len(LOG_LINE.findall(job.log.read_text())) < 12:
        assert time.monotonic() < end, job.log.read_text()
        time.sleep(0.2)
    if is_slow:
        from tfworkshop.report import horovod_timeline

        report = horovod_timeline.read(timeline)
        assert report.verdict["kind"] == "communication-bound", report
        assert report.step_ms > 190  # 4.8 MB at 200 Mbit/s

    cluster.cut("n2")
    cut = datetime.now().replace(microsecond=0)
    info = wait_for(cluster, job.number)
    assert info["JobState"] == "NODE_FAIL"
    assert datetime.fromisoformat(info["EndTime"]) - cut < timedelta(seconds=60)
    assert re.search(r"^srun: error: Node failure on n2$", job.log.read_text(), flags=re.M)
    assert not list((site.folder / "results").glob(f"*-np2-{job.number}.json"))
    end = time.monotonic() + 10
    while len(cluster.processes("n1")) > 2 and time.monotonic() < end:
        time.sleep(0.2)
    assert len(cluster.processes("n1")) == 2  # the host itself, and slurmd
