"""Counts, times, marks and records the steps of the program around it.

It runs inside the user's program: the standard library and the TensorFlow found there, no more.
A step lasts from the end of one training call to the end of the next, so fetching a batch and
logging are inside.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfworkshop.profile.summary import NAME, Kind, Summary

WARM_UP = 10  # steps that are not timed
QUIET = 5  # steps without any tracing, before the window may begin
PATIENCE = 50  # steps that the window is put off for that
MOST_WINDOWS = 3  # of kinds of steps that do not contain each other
EVALUATION = 1000  # events: more than any step has
LAST_STEPS = 1000  # that the median is taken from


class OpenCall:
    """An outermost call: of a tf.function, of an optimizer, or one batch of model.fit."""

    def __init__(self, key: Hashable, name: str, trains: bool) -> None:
        self.key = key
        self.name = name
        self.trains = trains


class Progress:
    """What is known of a kind of step while the program runs."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.start: float | None = None  # of the step that is running
        self.events = 0  # when it began
        self.sizes: list[int] = []  # events of the steps before the window
        self.times: deque[float] = deque(maxlen=LAST_STEPS)  # of unrecorded steps, in seconds
        self.counters: dict[str, int] = {}  # of the ideal GPU, when the step began
        self.steps_since_tracing = 0

    def is_regular(self, events: int) -> bool:
        """An evaluation calls functions and fetches batches many times."""
        return not self.sizes or events <= 2 * statistics.median(self.sizes) + 3


class Recorder:
    def __init__(
        self,
        folder: Path | None,
        window: tuple[int, int] | None,
        stop: bool,
        read_counters: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self.folder = folder  # None: this process only counts
        self.read_counters = read_counters  # of the ideal GPU; elsewhere there are none
        self.first, self.last = window or (20, 29)
        self.may_wait = window is None  # for the last tracing
        self.stop = stop
        self.warm_up = min(WARM_UP, self.first // 2)
        self.summary = Summary()
        self.progress: dict[Hashable, Progress] = {}
        self.open: OpenCall | None = None
        self.events = 0
        self.tf: Any = None
        self.recording: Progress | None = None
        self.marker: Any = None
        self.last_fetched: Any = None  # by Python, from a tf.data pipeline

    # --- what the hooks say ---

    def begin(self, key: Hashable, name: str, trains: bool = False) -> bool:
        """An outermost call begins; False if it is inside another one."""
        if self.open:
            return False
        self.open = OpenCall(key, name, trains)
        return True

    def end(self, count_samples: Callable[[], int]) -> None:
        """It ends; if it trains, so does a step."""
        call, self.open = self.open, None
        self.events += 1
        if call and call.trains:
            self.end_step(self.progress_of(call.key, call.name), count_samples)

    def progress_of(self, key: Hashable, name: str) -> Progress:
        if key not in self.progress:
            kind = Kind(name)
            self.summary.kinds.append(kind)
            self.progress[key] = Progress(kind)
        return self.progress[key]

    def trains(self) -> None:
        """Something in the open call computes gradients or updates variables."""
        if self.open:
            self.open.trains = True

    def traced(self) -> None:
        for progress in self.progress.values():
            progress.steps_since_tracing = 0

    def restart(self, key: Hashable, name: str) -> None:
        """What ran since the last step's end belongs to no step."""
        progress = self.progress_of(key, name)
        if self.recording is progress:
            self.close_marker(None)
            self.open_marker()
        self.start_step(progress)

    # --- steps ---

    def start_step(self, progress: Progress) -> None:
        progress.events = self.events
        progress.counters = self.read_counters()
        progress.start = time.perf_counter()

    def end_step(self, progress: Progress, count_samples: Callable[[], int]) -> None:
        kind = progress.kind
        step = kind.count  # the first is step 0
        kind.count += 1
        if kind.count == 2:  # the first full step
            kind.samples = count_samples()
        progress.steps_since_tracing += 1
        is_recorded = self.recording is progress
        begins_window = self.may_record(progress)
        counters = self.read_counters()
        if kind.count == self.warm_up or begins_window:
            self.tf.test.experimental.sync_devices()  # what was launched belongs to these steps
        self.time_step(progress, is_recorded, step, counters)
        if self.recording and not is_recorded:
            kind.inside = self.recording.kind.name
        if is_recorded and kind.count > self.last_of_window(kind):
            self.stop_recording()
            if self.stop:
                raise SystemExit(0)
        elif is_recorded:
            self.open_marker()
        elif begins_window:
            self.start_recording(progress)
        self.start_step(progress)

    def time_step(
        self, progress: Progress, is_recorded: bool, step: int, counters: dict[str, int]
    ) -> None:
        kind, size = progress.kind, self.events - progress.events
        seconds = None
        if progress.start is not None:
            seconds = time.perf_counter() - progress.start
        is_regular = seconds is not None and progress.is_regular(size)
        if is_recorded:
            self.close_marker(step if is_regular else None)
            kind.recorded += is_regular
        if seconds is None or not is_regular:
            kind.irregular += seconds is not None
            return
        kind.all.add(seconds)
        if is_recorded or (not kind.folder and step < self.warm_up):
            return
        progress.times.append(seconds)
        for name, value in counters.items():
            kind.work[name] = kind.work.get(name, 0) + value - progress.counters[name]
        if kind.folder:
            kind.after.add(seconds)
        else:
            kind.before.add(seconds)
            if step < self.first:
                progress.sizes.append(size)

    # --- the window ---

    def may_record(self, progress: Progress) -> bool:
        kind = progress.kind
        if self.recording or kind.folder or kind.inside or kind.count < self.first:
            return False
        if sum(bool(other.folder) for other in self.summary.kinds) == MOST_WINDOWS:
            return False
        if self.may_wait and kind.count < self.first + PATIENCE:
            return progress.steps_since_tracing > QUIET
        return True

    def last_of_window(self, kind: Kind) -> int:
        return kind.first + self.last - self.first

    def start_recording(self, progress: Progress) -> None:
        kind = progress.kind
        windows = sum(bool(other.folder) for other in self.summary.kinds)
        if self.folder:
            folder = self.folder / f"kind{windows + 1}" if windows else self.folder
            try:
                self.tf.profiler.experimental.start(str(folder))
            except self.tf.errors.AlreadyExistsError:  # the program records itself: try again
                self.summary.occupied = True
                return
            kind.folder = str(folder)
        else:
            kind.folder = "-"  # another rank records: this one keeps in step
        kind.first = kind.count
        kind.has_settled = progress.steps_since_tracing > QUIET
        self.recording = progress
        self.open_marker()

    def open_marker(self) -> None:
        self.marker = self.tf.profiler.experimental.Trace("train")
        self.marker.__enter__()

    def close_marker(self, step: int | None) -> None:
        """Only a marker with a number is a step for the tools."""
        if step is not None:
            self.marker.set_metadata(step_num=step, _r=1)
        self.marker.__exit__(None, None, None)

    def stop_recording(self) -> None:
        progress, self.recording = self.recording, None
        if progress is None:
            return
        if self.folder:
            self.tf.test.experimental.sync_devices()
            self.tf.profiler.experimental.stop()
            runs = (Path(progress.kind.folder) / "plugins" / "profile").iterdir()
            progress.kind.folder = str(max(runs, key=lambda run: run.stat().st_mtime))
            self.write()

    def cut_short(self) -> None:
        """The step that is running is not over, and the recording must end."""
        if self.recording:
            self.close_marker(None)
            self.stop_recording()

    # --- the end ---

    def finish(self) -> None:
        """However the program ends, what was recorded is kept."""
        self.cut_short()
        self.write()

    def write(self) -> None:
        for progress in self.progress.values():
            if progress.times:
                progress.kind.median_ms = 1e3 * statistics.median(progress.times)
        if self.folder:
            part = self.folder / f"{NAME}.part"
            part.write_text(json.dumps(asdict(self.summary)))
            part.replace(self.folder / NAME)
