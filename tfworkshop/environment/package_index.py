"""Fetches one pinned file from the package index, as pip would, on a machine without pip.

The settings are pip's own: its files and variables say which index, proxy and certificates.
"""

import base64
import configparser
import contextlib
import hashlib
import html
import netrc
import os
import re
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

from tfworkshop.problem import Problem, reason_of
from tfworkshop.progress import ProgressLine

if TYPE_CHECKING:
    from typing import Any

TIMEOUT_S = 15.0  # also pip's own
SYSTEM_FILES = [Path("/Library/Application Support/pip/pip.conf"), Path("/etc/pip.conf")]
CHUNK = 1 << 18
CERTIFICATES = ": sudo apt install ca-certificates, or PIP_CERT=FILE"  # where none is trusted
ON = ("1", "true", "yes", "on")


def settings_files() -> "list[Path]":
    """In pip's order: what comes later wins."""
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (never raises, Path's own does)
    shared = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    files = [Path(folder, "pip", "pip.conf") for folder in shared.split(os.pathsep) if folder]
    files += SYSTEM_FILES
    if not (named and Path(named).exists()):
        own = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        files += [home / ".pip" / "pip.conf", own / "pip" / "pip.conf"]
        files += [home / "Library" / "Application Support" / "pip" / "pip.conf"]
    files += [Path(sys.prefix, "pip.conf")]
    return [*files, Path(named)] if named else files


def settings() -> "dict[str, str]":
    """pip's settings by their long names: index-url, find-links, cert ..."""
    found = {}
    for path in settings_files():
        parser = configparser.RawConfigParser()
        try:
            parser.read(str(path))
        except (configparser.Error, UnicodeDecodeError, OSError) as error:
            line = str(error).splitlines()[0]
            raise Problem(f"pip's settings cannot be read: {line}. Correct {path}.") from None
        for section in ("global", "download", "install"):
            if parser.has_section(section):
                items = parser.items(section)
                found.update((key.replace("_", "-"), value) for key, value in items)
    for name, value in os.environ.items():
        if name.startswith("PIP_") and value:
            found[name[4:].lower().replace("_", "-")] = value
    return found


def certificates(options: "dict[str, str]") -> "str | None":
    """The file or folder to trust, if not the system's."""
    variables = map(os.environ.get, ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"))
    named = next(filter(None, [options.get("cert"), *variables]), None)
    paths = ssl.get_default_verify_paths()
    if not (named or paths.cafile or paths.capath):  # a Python for macOS has none
        with contextlib.suppress(ImportError):
            from pip._vendor import certifi

            return certifi.where()
    return named


def default_index() -> str:
    """pip's default, if nothing else is configured; a Debian without pip has it in a package."""
    with contextlib.suppress(ImportError):
        from pip._internal.models.index import PyPI

        return PyPI.simple_url
    code = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    with tempfile.TemporaryDirectory() as folder:
        output(["apt-get", "-q", "download", "python3-pip-whl"], folder)  # needs no root
        for package in Path(folder).glob("python3-pip-whl_*.deb"):
            output(["dpkg-deb", "-x", str(package), folder], folder)
        for wheel in Path(folder).rglob("pip-*.whl"):
            env = dict(os.environ, PYTHONPATH=str(wheel))
            found = output([sys.executable, "-c", code], folder, env).strip()
            if found:
                return found
    raise Problem(
        "no pip here to say where packages come from. Install it (python3-pip), or "
        "name an index: PIP_INDEX_URL=https://... ./workshop ..."
    )


def output(command: "list[str]", folder: str, env: "dict[str, str] | None" = None) -> str:
    """What a program prints; nothing where there is none, or where it fails."""
    pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": 60}
    try:
        return subprocess.check_output(command, cwd=folder, env=env, **pipes).decode()
    except (OSError, subprocess.SubprocessError):
        return ""


def places(options: "dict[str, str]", project: str) -> "list[str]":
    """Where to look, as URLs: folders and pages of find-links, then each index's page."""
    found = []
    for link in options.get("find-links", "").split():
        found.append(link if "://" in link else Path(link).expanduser().absolute().as_uri())
    if options.get("no-index", "").lower() not in ON:
        indexes = [options.get("index-url") or default_index()]
        indexes += options.get("extra-index-url", "").split()
        found += [f"{index.rstrip('/')}/{project}/" for index in indexes]
    return found


def open_url(url: str, options: "dict[str, str]") -> "Any":
    """As pip would: its proxy and certificates, and the password in the URL or in ~/.netrc."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    context = ssl.create_default_context()
    path = certificates(options)
    if path:
        try:
            context.load_verify_locations(**{"capath" if Path(path).is_dir() else "cafile": path})
        except OSError as error:
            raise Problem(f"the certificates {path} cannot be read ({error}).") from None
    if {host, f"{host}:{parts.port}"} & set(options.get("trusted-host", "").split()):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    handlers = [urllib.request.HTTPSHandler(context=context)]
    if options.get("proxy"):
        proxy = options["proxy"]
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    request = urllib.request.Request(urllib.parse.urlunsplit(bare))
    inside = parts.netloc.rpartition("@")[0]
    login = urllib.parse.unquote(inside) if inside else from_netrc(host)
    if login:
        word = base64.b64encode(login.encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {word}")
    timeout = float(options.get("timeout") or options.get("default-timeout") or TIMEOUT_S)
    return urllib.request.build_opener(*handlers).open(request, timeout=timeout)


def from_netrc(host: str) -> "str | None":
    try:
        found = netrc.netrc().authenticators(host) if host else None
    except (OSError, netrc.NetrcParseError):
        return None
    return f"{found[0]}:{found[2]}" if found else None


def find_link(place: str, filename: str, options: "dict[str, str]") -> "str | None":
    """The URL of the file, if this place has it."""
    parts = urllib.parse.urlsplit(place)
    if parts.scheme == "file":
        folder = Path(urllib.request.url2pathname(parts.path))
        if (folder / filename).is_file():
            return (folder / filename).as_uri()
        page = folder / "index.html" if folder.is_dir() else folder
        text = page.read_text(errors="replace") if page.is_file() else ""
        place = page.as_uri()
    else:
        with open_url(place, options) as answer:
            text = answer.read().decode(errors="replace")
    pattern = r"""href\s*=\s*["']([^"'#]*\b{}(?:[?#][^"']*)?)["']"""
    found = re.search(pattern.format(re.escape(filename)), text)
    if not found:
        return None
    link = urllib.parse.urlsplit(urllib.parse.urljoin(place, html.unescape(found.group(1))))
    if link.hostname == parts.hostname and "@" in parts.netloc:  # the page's password
        link = link._replace(netloc=parts.netloc)
    return urllib.parse.urlunsplit(link)


def download(url: str, digest: str, options: "dict[str, str]", title: str) -> bytes:
    """The whole file, verified: nothing else is ever written."""
    line, body = ProgressLine(title), bytearray()
    try:
        with open_url(url, options) as answer:
            expected = int(answer.headers.get("Content-Length") or 0)
            for chunk in iter(lambda: answer.read(CHUNK), b""):
                body += chunk
                line.show(f"{len(body) / 1e6:.1f} of {expected / 1e6:.1f} MB")
    finally:
        line.clear()
    if len(body) < expected:
        raise ValueError(f"the download ended after {len(body)} of {expected} bytes")
    if hashlib.sha256(body).hexdigest() != digest:
        raise ValueError("the download has the wrong SHA-256")
    return bytes(body)


def fetch(project: str, filename: str, digest: str, folder: Path) -> Path:
    """The verified file in `folder`, a temporary one, from the first place that has it."""
    options, reasons = settings(), []
    for place in places(options, project):
        where = urllib.parse.urlsplit(place).hostname or place  # the URL may hold a password
        try:
            link = find_link(place, filename, options)
            if link:
                body = download(link, digest, options, f"Fetching {project}")
                (folder / filename).write_bytes(body)
                return folder / filename
            reasons.append(f"{where} does not have it")
        except (OSError, ValueError, HTTPException) as error:
            hint = CERTIFICATES if "VERIFY_FAILED" in reason_of(error) else ""
            reasons.append(f"{where}: {reason_of(error)}{hint}")
    why = "; ".join(reasons) or "pip's settings name no index"
    raise Problem(f"{filename} cannot be fetched ({why})")
