"""A Python where none fits: found, or got with the real uv; and pip's settings without pip."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.test_environment import make_copy, plain_machine, script
from tfworkshop.environment import horovod_build, package_index, python_install
from tfworkshop.problem import Problem

ROOT = Path(__file__).resolve().parent.parent
TAG, DIGEST = python_install.UV_WHEELS["Linux", "x86_64"]
WHEEL = f"uv-{python_install.UV_VERSION}-py3-none-{TAG}.whl"
RELEASES = "https://github.com/astral-sh/python-build-standalone/releases/download"
# The launcher in an interpreter that says it is too new.
PRETEND = (
    "import runpy, subprocess, sys; sys.version_info = (3, 13, 0, 'final', 0); "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
linux = pytest.mark.skipif(
    os.uname()[::4] != ("Linux", "x86_64"), reason="the stand-in Python is for Linux x86_64"
)
_ = plain_machine  # a fixture, for every test


@pytest.fixture(autouse=True)
def plain_pip(monkeypatch, tmp_path):
    """No settings of pip or uv, no network but a test's own, an empty home."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "XDG_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(package_index, "SYSTEM_FILES", [])
    monkeypatch.setattr(python_install, "ROOT", tmp_path)  # whose .cache has no Python
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "xdg"))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://127.0.0.1:9/simple\n")


# --- which Python ---


@pytest.mark.parametrize("version", [(3, 9, 0), (3, 12, 9), (3, 13, 0), (3, 14, 1)])
def test_from_3_9_on_any_python_starts(monkeypatch, version):
    monkeypatch.setattr(sys, "version_info", version)
    for light in (True, False):
        assert python_install.starting_python(light) == sys.executable
    assert python_install.fits(version) == (version < (3, 13))


def test_an_older_python_looks_for_another(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "version_info", (3, 8, 1))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Problem, match=r"3\.9 or newer, found 3\.8\. Type: \./workshop setup"):
        python_install.starting_python(light=True)  # and installs nothing for that
    new = script(tmp_path / "python3.14", 'echo "3 14 $0"\n')
    assert python_install.starting_python(light=True) == str(new)
    monkeypatch.setattr(python_install, "get_python", lambda: "a new one")
    assert python_install.starting_python(light=False) == "a new one"


def test_another_python_is_found_behind_a_broken_shim(monkeypatch, tmp_path):
    script(tmp_path / "shims" / "python3.12", "exit 127\n")
    script(tmp_path / "liar" / "python3.11", "echo 3 14 /liar\n")
    home = script(tmp_path / "home" / ".local" / "bin" / "python3.10", 'echo "3 10 $0"\n')
    path = os.pathsep.join(str(tmp_path / name) for name in ("shims", "liar", "good"))
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    assert python_install.fitting_python() == str(home)
    good = script(tmp_path / "good" / "python3.11", 'echo "3 11 $0"\n')
    assert python_install.fitting_python() == str(good)


@pytest.mark.parametrize(
    ("answer", "told"), [("exit 1", "no such Python"), ("echo 3 13 /new", r"is 3\.13")]
)
def test_workshop_python_must_be_a_fitting_python(monkeypatch, tmp_path, answer, told):
    named = script(tmp_path / "mypython", answer + "\n")
    monkeypatch.setenv("WORKSHOP_PYTHON", str(named))
    with pytest.raises(Problem, match=rf"WORKSHOP_PYTHON=.*{told}.*Python 3\.9 to 3\.12"):
        python_install.starting_python(light=False)
    assert python_install.starting_python(light=True) == sys.executable  # the doctor must start


def test_workshop_python_may_be_a_folder_that_uv_has_made(monkeypatch, tmp_path):
    inside = script(tmp_path / "py" / "cpython-3.12.4" / "bin" / "python3.12", 'echo "3 12 $0"\n')
    monkeypatch.setenv("WORKSHOP_PYTHON", str(tmp_path / "py"))
    assert python_install.starting_python(light=False) == str(inside)


def test_what_an_old_python_must_read_is_old_syntax():
    inside = (f"environment/{name}" for name in ("package_index", "python_install", "logged"))
    for name in (*inside, "problem", "progress"):
        text = (ROOT / "tfworkshop" / f"{name}.py").read_text()
        tree = ast.parse(text, feature_version=(3, 6))
        assert "from __future__" not in text  # annotations came with 3.7
        for node in ast.walk(tree):
            assert not isinstance(node, ast.NamedExpr)
            if isinstance(node, (ast.FunctionDef, ast.AnnAssign)):
                parts = [node.returns, *(each.annotation for each in node.args.args)]
                assert not any(isinstance(part, (ast.Subscript, ast.BinOp)) for part in parts)


# --- pip's settings ---


def test_pips_settings_win_in_pips_order(monkeypatch, tmp_path):
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    monkeypatch.delenv("PIP_CONFIG_FILE")
    write(tmp_path / "xdg/pip/pip.conf", "[global]\nindex-url = one\ncert = c\nproxy = p\n")
    write(tmp_path / "home/.pip/pip.conf", "[global]\nindex_url = two\n")
    write(tmp_path / "home/.config/pip/pip.conf", "[install]\nindex-url = three\n")
    found = package_index.settings()
    assert (found["index-url"], found["cert"], found["proxy"]) == ("three", "c", "p")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "own.conf"))
    write(tmp_path / "own.conf", "[global]\nextra-index-url =\n  x\n  y\n")  # instead of home's
    found = package_index.settings()
    assert found["index-url"] == "one"
    assert package_index.places(found, "uv") == ["one/uv/", "x/uv/", "y/uv/"]
    monkeypatch.setenv("PIP_INDEX_URL", "four/")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert package_index.places(package_index.settings(), "uv")[:2] == [
        tmp_path.as_uri(),
        "four/uv/",
    ]
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert package_index.places(package_index.settings(), "uv") == [tmp_path.as_uri()]
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert "cert" not in package_index.settings()


def test_without_settings_the_index_is_pips_own(monkeypatch):
    index = pytest.importorskip("pip._internal.models.index")
    assert index.PyPI.simple_url == package_index.default_index()


def test_broken_settings_are_named(tmp_path):
    (tmp_path / "pip.conf").write_text("index-url = x\n")
    with pytest.raises(Problem, match=r"pip's settings cannot be read.*pip\.conf"):
        package_index.settings()


class Index:
    """A package index on this machine; it keeps what it was asked for."""

    def __init__(self, folder: Path) -> None:
        index = self
        self.asked: list[str] = []
        self.logins: list[str | None] = []
        self.slow = False
        self.claimed = 0  # a Content-Length other than the truth

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                index.logins.append(self.headers["Authorization"])
                while index.slow and self.path.endswith(".whl"):
                    time.sleep(0.02)
                if "://" in self.path:  # asked as a proxy
                    self.path = "/" + self.path.split("/", 3)[3]
                super().do_GET()

            def send_header(self, name: str, value: str) -> None:
                wrong = index.claimed and name == "Content-Length" and self.path.endswith(".whl")
                super().send_header(name, str(index.claimed) if wrong else value)

            def log_message(self, *_: object) -> None:
                pass

        handler = functools.partial(Handler, directory=str(folder))
        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self.httpd.server_port
        self.url = f"http://127.0.0.1:{self.port}/simple"
        threading.Thread(target=self.httpd.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.slow = False
        self.httpd.shutdown()
        self.httpd.server_close()


@pytest.fixture
def index(tmp_path):
    """With one package, `tiny`, whose page links to another folder."""
    folder = tmp_path / "index"
    (folder / "simple" / "tiny").mkdir(parents=True)
    (folder / "files").mkdir()
    (folder / "files" / "tiny-1.0.whl").write_bytes(b"tiny" * 100_000)
    (folder / "simple" / "tiny" / "index.html").write_text(
        '<a href="../../files/other-tiny-1.0.whl.asc">no</a>\n'
        '<a data-x="1" href="../../files/tiny-1.0.whl#sha256=0">tiny-1.0.whl</a>\n'
    )
    running = Index(folder)
    yield running
    running.close()


TINY = hashlib.sha256(b"tiny" * 100_000).hexdigest()


def fetch_tiny(folder: Path, digest: str = TINY) -> Path:
    return package_index.fetch("tiny", "tiny-1.0.whl", digest, folder)


def test_a_mirror_in_pip_conf_with_a_password(index, tmp_path):
    url = index.url.replace("//", "//me:p%40ss@")
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {url}\n")
    assert fetch_tiny(tmp_path).read_bytes() == b"tiny" * 100_000
    assert index.asked == ["/simple/tiny/", "/files/tiny-1.0.whl"]
    assert index.logins == ["Basic bWU6cEBzcw=="] * 2
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".netrc").write_text("machine 127.0.0.1 login me password p@ss\n")
    (tmp_path / "home" / ".netrc").chmod(0o600)
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {index.url}\n")
    fetch_tiny(tmp_path)
    assert index.logins == ["Basic bWU6cEBzcw=="] * 4


def test_a_proxy_and_a_folder_of_wheels(index, tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://index.invalid/simple\n")
    monkeypatch.setenv("PIP_PROXY", f"http://127.0.0.1:{index.port}")
    fetch_tiny(tmp_path)
    assert index.asked[0] == "http://index.invalid/simple/tiny/"
    index.asked.clear()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index" / "files"))
    fetch_tiny(tmp_path)
    assert index.asked == []
    # pip takes a folder on this machine for an index, too.
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index" / "simple").as_uri())
    fetch_tiny(tmp_path)


@pytest.mark.parametrize("fault", ["digest", "cut", "missing", "no network"])
def test_a_download_that_fails_leaves_nothing(index, tmp_path, monkeypatch, fault):
    target, digest = tmp_path / "target", TINY
    target.mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    if fault == "digest":
        digest, told = "0" * 64, r"127\.0\.0\.1: the download has the wrong SHA-256"
    elif fault == "cut":
        index.claimed = 10**6
        told = "the download ended after 400000 of 1000000 bytes|IncompleteRead"
    elif fault == "missing":
        (tmp_path / "index" / "simple" / "tiny" / "index.html").write_text("")
        told = "does not have it"
    else:
        monkeypatch.setenv("PIP_INDEX_URL", "http://me:secret@127.0.0.1:9/simple")
        told = r"127\.0\.0\.1: Connection refused"
    with pytest.raises(Problem, match=told) as caught:
        fetch_tiny(target, digest)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
    assert not list(target.iterdir())


# --- the real uv, with a mirror of Pythons that the test makes ---


@pytest.fixture(scope="session")
def wheels(tmp_path_factory) -> Path:
    """The folder of uv's real wheel, as pip fetches it."""
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    platforms = [f"--platform={tag}" for tag in TAG.split(".")]
    got = subprocess.run(
        [*pip, *platforms, "-d", str(folder), f"uv=={python_install.UV_VERSION}"],
        capture_output=True,
        text=True,
    )
    if got.returncode != 0:
        pytest.skip(f"pip cannot fetch uv here: {got.stderr.strip().splitlines()[-1]}")
    return folder


@pytest.fixture
def fresh(tmp_path, wheels, monkeypatch):
    """A copy of the repository, a mirror of Pythons, and no Python on PATH."""
    copy = make_copy(tmp_path / "repo")
    mirror = tmp_path / "mirror" / "1"
    python = script(
        mirror / "python" / "bin" / "python3.12",
        f'if [ "$1" = -c ]; then echo "3 12 $0"; else exec {sys.executable} "$@"; fi\n',
    )
    library = python.parent.parent / "lib" / "python3.12"
    library.mkdir(parents=True)
    (library / "_sysconfigdata__linux_x86_64-linux-gnu.py").write_text(
        "# system configuration generated and used by the sysconfig module\nbuild_time_vars = {}\n"
    )
    with tarfile.open(mirror / "python.tar.gz", "w:gz") as archive:
        archive.add(mirror / "python", "python")
    digest = hashlib.sha256((mirror / "python.tar.gz").read_bytes()).hexdigest()
    told = {"name": "cpython", "arch": {"family": "x86_64", "variant": None}, "os": "linux"}
    told |= {"libc": "gnu", "major": 3, "minor": 12, "patch": 4, "prerelease": "", "build": "1"}
    told |= {"url": f"{RELEASES}/1/python.tar.gz", "sha256": digest, "variant": None}
    listing = tmp_path / "downloads.json"
    listing.write_text(json.dumps({"cpython-3.12.4-linux-x86_64-gnu": told}))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "env"):
        (programs / name).symlink_to(shutil.which(name))
    settings = {
        "PATH": str(programs),
        "PIP_FIND_LINKS": f"{wheels} {copy}",
        "PIP_NO_INDEX": "1",
        "UV_PYTHON_DOWNLOADS_JSON_URL": listing.as_uri(),
        "UV_PYTHON_INSTALL_MIRROR": (tmp_path / "mirror").as_uri(),
        "WORKSHOP_TENSORFLOW": "tensorflow-cpu",
        "WORKSHOP_PYTHON_ENV": "venv",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return copy


def start(copy: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRETEND, str(copy / "workshop"), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=copy, stdout=pipe, stderr=pipe, text=True)


def left(copy: Path) -> list[str]:
    """What the cache holds beside locks and logs."""
    return [
        path.name
        for path in (copy / ".cache").glob("**/*")
        if not path.name.endswith((".lock", ".log", ".gitignore")) and path.name != "python"
    ]


@linux
def test_two_at_once_get_one_python_and_go_on(fresh):
    both = [start(fresh, "setup") for _ in range(2)]
    told = [process.communicate(timeout=100)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert sum("Getting Python 3.12 with uv, once" in text for text in told) == 1, told
    assert all("Ready: " in text for text in told)
    assert sorted(path.name for path in (fresh / ".cache").iterdir()) == [
        "python",
        "python-install.log",
        "python.lock",
    ]
    assert not (Path(os.environ["HOME"]) / ".local").exists()  # nothing outside the repository
    process = start(fresh, "run")  # on the environment that is there, this Python will do
    output, errors = process.communicate(timeout=50)
    assert (process.returncode, errors) == (0, "") and json.loads(output)[0] == ["run"]


@linux
def test_what_needs_no_environment_gets_nothing(fresh):
    for arguments in (["doctor"], ["data"]):
        process = start(fresh, *arguments)
        output, errors = process.communicate(timeout=50)
        assert process.returncode == 0, errors
        assert json.loads(output)[0] == arguments and not (fresh / ".cache").exists()


@linux
@pytest.mark.parametrize("fault", ["no index", "no mirror", "digest", "half", "uv"])
def test_what_cannot_be_got_is_one_line_and_leaves_nothing(fresh, tmp_path, monkeypatch, fault):
    archive = tmp_path / "mirror" / "1" / "python.tar.gz"
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    if fault == "no index":
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        monkeypatch.delenv("PIP_NO_INDEX")
        told = "127.0.0.1: Connection refused"
    elif fault == "no mirror":
        monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", "http://127.0.0.1:9")
        told = "Connection refused"
    elif fault == "digest":
        archive.write_bytes(archive.read_bytes() + b"\0")
        told = "Hash mismatch"
    elif fault == "half":
        archive.write_bytes(archive.read_bytes()[:100])
        told = "Failed to"
    else:  # a wheel of the right name
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
        (tmp_path / WHEEL).write_bytes(b"not uv")
        told = "the download has the wrong SHA-256"
    process = start(fresh, "run")
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 1
    lines = errors.strip().splitlines()
    assert len(lines) == 3 and lines[2].startswith("workshop: ") and told in lines[2], errors
    assert "uv python install 3.12 --install-dir py" in lines[2]
    assert lines[2].endswith("WORKSHOP_PYTHON=py ./workshop setup")
    assert left(fresh) == []


@linux
def test_what_it_says_to_type_works(fresh, tmp_path, monkeypatch):
    uv = python_install.fetch_uv(tmp_path)
    typed = "uv python install 3.12 --install-dir py"
    assert typed in python_install.BY_HAND
    subprocess.run([uv, *typed.split()[1:], "--no-bin"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKSHOP_PYTHON", "py")
    python = python_install.starting_python(light=False)
    assert re.fullmatch(r"py/cpython-3\.12[^/]*/bin/python3\.12", python)


@linux
def test_ctrl_c_leaves_nothing(fresh, wheels, tmp_path, monkeypatch):
    (tmp_path / "index" / "simple").mkdir(parents=True)
    shutil.copytree(wheels, tmp_path / "index" / "simple" / "uv")  # its listing is the page
    index = Index(tmp_path / "index")
    index.slow = True
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    process = start(fresh, "setup")
    end = time.monotonic() + 30
    while not any(path.endswith(".whl") for path in index.asked):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    index.close()
    assert process.returncode == 130 and "Traceback" not in errors
    assert left(fresh) == []


def test_a_uv_on_path_is_used(tmp_path, monkeypatch):
    """With pip's proxy and certificates, and into our folder only."""
    uv = script(
        tmp_path / "bin" / "uv",
        f'[ "$1" = --version ] || {{ env > {tmp_path}/env; mkdir -p $UV_PYTHON_INSTALL_DIR/x/bin; '
        "printf '#!/bin/sh\\necho 3 12 /got\\n' > $UV_PYTHON_INSTALL_DIR/x/bin/python3.12; "
        "chmod +x $UV_PYTHON_INSTALL_DIR/x/bin/python3.12; }\n",
    )
    monkeypatch.setenv("PATH", f"{uv.parent}:/bin")
    monkeypatch.setenv("WORKSHOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_PROXY", "http://proxy:1")
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    found = iter([None, "/got"])  # before and after
    monkeypatch.setattr(python_install, "find_python", lambda folders=None: next(found))
    monkeypatch.setattr(python_install, "fetch", lambda *_: pytest.fail("a second uv"))
    assert python_install.get_python() == "/got"
    env = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    assert env["UV_PYTHON_INSTALL_DIR"] == str(tmp_path / "cache" / "python")
    assert (env["UV_PYTHON_INSTALL_BIN"], env["ALL_PROXY"]) == ("0", "http://proxy:1")
    assert env["SSL_CERT_FILE"] == str(tmp_path / "ca.pem")


def test_a_machine_that_uv_does_not_know(monkeypatch, tmp_path):
    monkeypatch.setattr(python_install.platform, "machine", lambda: "riscv64")
    with pytest.raises(Problem, match=r"no uv for \w+ riscv64.*WORKSHOP_PYTHON=/path/to/python"):
        python_install.fetch_uv(tmp_path)


# --- Horovod's source ---


def test_the_patch_fits_the_real_source(tmp_path_factory, tmp_path, monkeypatch):
    """No build: what g++ 14 refuses is gone, and nothing else has changed."""
    monkeypatch.undo()  # pip's real settings
    cache = python_install.cache_folder()
    file = f"horovod-{horovod_build.HOROVOD_VERSION}.tar.gz"
    try:
        cache.mkdir(exist_ok=True)
        sdist = cache / file
        if not sdist.exists():
            package_index.fetch("horovod", file, horovod_build.SDIST_DIGEST, cache)
    except Problem as problem:
        pytest.skip(str(problem))
    source = horovod_build.unpack_patched(sdist, tmp_path)
    with tarfile.open(sdist) as archive:
        for name, old, new in horovod_build.PATCHES:
            member, text = archive.extractfile(f"{source.name}/{name}"), (source / name).read_text()
            assert member and member.read().decode() == text.replace(new, old)
            assert text.count(new) == 1 and old not in text
    with tarfile.open(tmp_path / "again.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    with pytest.raises(Problem, match="is not the one of Horovod"):
        horovod_build.unpack_patched(tmp_path / "again.tar.gz", tmp_path)


def test_a_debian_without_pip_still_knows_the_index(tmp_path, monkeypatch) -> None:
    """Its package of pip's wheel, from apt as any user can call it: here programs that act so."""
    monkeypatch.setitem(sys.modules, "pip._internal.models.index", None)
    with zipfile.ZipFile(tmp_path / "pip-1-py3-none-any.whl", "w") as wheel:
        for name in ("pip", "pip/_internal", "pip/_internal/models"):
            wheel.writestr(f"{name}/__init__.py", "")
        text = "class PyPI: simple_url = 'https://index.example/simple'"
        wheel.writestr("pip/_internal/models/index.py", text)
    gets = 'test "$2 $3" = "download python3-pip-whl" && touch python3-pip-whl_1_all.deb\n'
    apt = script(tmp_path / "bin" / "apt-get", gets)
    unpacks = f'mkdir -p "$3/usr" && cp {tmp_path}/pip-1-py3-none-any.whl "$3/usr"\n'
    script(tmp_path / "bin" / "dpkg-deb", unpacks)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    assert package_index.default_index() == "https://index.example/simple"
    script(apt, "exit 100\n")
    with pytest.raises(Problem, match="no pip here to say where packages come from"):
        package_index.default_index()
