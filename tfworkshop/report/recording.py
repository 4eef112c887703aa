"""The files of a recording: finding them, and reading each as a host."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tfworkshop.problem import Problem
from tfworkshop.report import names, wire, xspace
from tfworkshop.report.profile import ENDING
from tfworkshop.report.xspace import Line, Plane, Space

LARGE = 100_000_000  # bytes: from here on reading takes a while, and we say so
MICROSECOND = 1_000_000  # in ps
TIME = re.compile(r"\d{4}(_\d\d){5}$")
MAKE_ONE = "cd 04_tf_profiler && python train_MNIST.py --steps 50 --logdir logs"


# --- finding it ---


@dataclass
class Run:
    """One recording: a file for every host that took part."""

    folder: Path
    files: list[Path]
    older: int = 0  # runs beside it

    @property
    def name(self) -> str:
        """The time it was recorded at, as TensorFlow names the folder; else the file's name."""
        if TIME.match(self.folder.name) or len(self.files) > 1:
            return self.folder.name
        return self.files[0].name[: -len(ENDING)]


def recording_time(folder: Path) -> str:
    """As text that sorts: the folder's name, or its time if it was renamed."""
    if TIME.match(folder.name):
        return folder.name
    return time.strftime("%Y_%m_%d_%H_%M_%S", time.localtime(folder.stat().st_mtime))


def find(path: Path, ranks: bool = False) -> Run:
    """The run that a path means: a file, a run's folder, or the newest run below a folder.

    With ranks all files below are one run, as when each rank recorded into its own folder.
    """
    if path.is_file():
        if not path.name.endswith(ENDING):
            raise Problem(f"{path} is not a profile: those end in {ENDING}")
        return Run(path.absolute().parent, [path])
    if not path.is_dir():
        raise Problem(f"no such folder: {path}. Name the --logdir of a profiled run")
    files = sorted(path.rglob(f"*{ENDING}"))
    if not files:
        raise Problem(f"no profile (*{ENDING}) in {path}. To make one: {MAKE_ONE}")
    if ranks:
        return Run(path.absolute(), files)
    folders = sorted(
        {file.absolute().parent for file in files}, key=lambda f: (recording_time(f), f)
    )
    newest = [file for file in files if file.absolute().parent == folders[-1]]
    return Run(folders[-1], newest, len(folders) - 1)


# --- reading it ---


@dataclass
class Span:
    """A marker or a step."""

    name: str  # train 5
    start_ps: int
    end_ps: int
    is_root: bool = False  # a marker that TensorFlow's own tools take for a step, too


@dataclass
class Host:
    name: str
    file: Path
    space: Space

    @cached_property
    def threads(self) -> list[Line]:
        planes = [plane for plane in self.space.planes if not names.DEVICE.match(plane.name)]
        return [line for plane in planes for line in plane.lines if len(line)]

    @cached_property
    def devices(self) -> list[Plane]:
        return [plane for plane in self.space.planes if names.DEVICE.match(plane.name)]

    @cached_property
    def is_ideal(self) -> bool:
        """Recorded on the ideal GPU: the times of its device events mean nothing."""
        return any(map(is_ideal_gpu, self.devices))

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """From the first event to the last, in ps; (0, 0) if there is none."""
        lines = [line for plane in self.space.planes for line in plane.lines if len(line)]
        if not lines:
            return 0, 0
        return (
            min(int(line.start_ps.min()) for line in lines),
            max(int(line.end_ps.max()) for line in lines),
        )

    def markers(self) -> list[Span]:
        """Every event with a step number, root or not."""
        found = []
        for line in self.threads:
            rows, numbers = line.numbers("step_num")
            is_root = np.isin(rows, line.rows_with("_r")).tolist()
            times = line.start_ps[rows].tolist(), line.end_ps[rows].tolist()
            labels = zip(line.names(rows), numbers.tolist())
            for (name, number), start, end, root in zip(labels, *times, is_root):
                found.append(Span(f"{name} {number}", start, end, root))
        return sorted(found, key=lambda marker: marker.start_ps)

    def recorded_ms(self) -> float:
        """From start to stop, as the profiler notes it; else from the first event to the last."""
        for plane in self.space.planes:
            start, stop = (plane.stats.get(f"profile_{key}_time") for key in ("start", "stop"))
            if isinstance(start, int) and isinstance(stop, int) and stop > start:
                return (stop - start) / 1e6
        return (self.bounds[1] - self.bounds[0]) / 1e9

    def has_event(self, pattern: re.Pattern[str]) -> bool:
        """Whether any event was recorded with such a name."""
        return any(
            bool(line.matches(pattern).any()) for plane in self.space.planes for line in plane.lines
        )


def is_ideal_gpu(plane: Plane) -> bool:
    """By its name; TensorFlow 2.17 records none, but there everything lasts a microsecond."""
    name = plane.stats.get("gpu_device_name")
    if name is not None:
        return name == names.IDEAL_GPU
    lines = device_lines(plane)
    return bool(lines) and all((line.duration_ps == MICROSECOND).all() for line in lines)


def device_lines(plane: Plane) -> list[Line]:
    """The streams of a device; its other lines are derived from them."""
    filled = [line for line in plane.lines if len(line)]
    streams = [line for line in filled if line.name.startswith("Stream")]
    if streams:
        return streams
    return [line for line in filled if names.DEVICE_LINE.search(line.name)]


def kernel_rows(line: Line) -> np.ndarray:
    """Which events of a device's line are kernels: not copies, not exchange."""
    return ~(line.matches(names.COPY) | line.matches(names.EXCHANGE))


def read(run: Run) -> tuple[list[Host], list[str]]:
    """Every file that can be read, and a line about each that cannot."""
    size = sum(file.stat().st_size for file in run.files)
    if size > LARGE:
        print(
            f"workshop: {size / 1e6:,.0f} MB of profile: this takes a while. Ten steps are enough: "
            "start the profiler later, stop it sooner (--profile-steps in 04_tf_profiler).",
            file=sys.stderr,
        )
    hosts, unreadable = [], []
    for file in run.files:
        try:
            hosts.append(read_host(file))
        except Problem as problem:
            unreadable.append(str(problem))
    if not hosts:
        raise Problem(unreadable[0])
    distinguish(hosts, run.folder)
    return hosts, [f"Left out: {line}" for line in unreadable]


def distinguish(hosts: list[Host], folder: Path) -> None:
    """Ranks of one node have its name: add the file's name or its folder.

    A stage's --profile-ranks all leaves rank 0 in the folder itself, rank 1 in 1, and so on.
    """
    host_names = [host.name for host in hosts]
    for host in hosts:
        if host_names.count(host.name) > 1:
            inside = host.file.absolute().relative_to(folder).parts
            own = inside[0] if len(inside) > 1 else host.file.name[: -len(ENDING)]
            if own == "plugins":
                own = "0"
            if own.isdigit():
                own = f"rank {own}"
            host.name = own if own.startswith(host.name) else f"{host.name} {own}"


def read_host(file: Path) -> Host:
    try:
        space = xspace.read(file.read_bytes())
    except wire.Broken:
        raise Problem(f"{file} is not a profile, or not a whole one") from None
    if not space.planes:
        raise Problem(f"{file} is empty: the profiler wrote nothing, was stop() called?")
    return Host(space.hosts[0] if space.hosts else file.name[: -len(ENDING)], file, space)
