"""Small packages made on the spot: wheels, source distributions, requirements files, and an index on loopback."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

FOR_WINDOWS = "cp311-cp311-win_amd64"
BACKEND = """
import os, zipfile
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    {before}
    name = "{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        for path, text in {files!r}.items():
            wheel.writestr(path, text)
    return name
"""


def wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    tag: str = "py3-none-any",
    requires: tuple[str, ...] = (),
    size: int = 0,
) -> Path:
    """Make a wheel of one module that knows its VERSION; with `size`, so many bytes that can't be compressed."""
    path = folder / f"{name}-{version}-{tag}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    contents = {f"{name}/blob": hashlib.shake_128(name.encode()).digest(size)} if size else {}
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in {**_files(name, version, tag, requires), **contents}.items():
            archive.writestr(zipfile.ZipInfo(inside), text)
    return path


def _files(name: str, version: str, tag: str = "py3-none-any", requires: tuple[str, ...] = ()) -> dict[str, str]:
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{name}/__init__.py": f"VERSION = '{version}'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    rows = [f"{path},sha256={_record_hash(text)},{len(text)}\n" for path, text in files.items()]
    return {**files, f"{info}/RECORD": "".join(rows) + f"{info}/RECORD,,\n"}


def _record_hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def sdist(folder: Path, name: str, version: str = "1.0", before: str = "pass") -> Path:
    """Make a source distribution that builds itself without any other package; `before` is run when it does."""
    path = folder / f"{name}-{version}.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": f'[project]\nname = "{name}"\nversion = "{version}"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(before=before, name=name, version=version, files=_files(name, version)),
    }
    with tarfile.open(path, "w:gz") as archive:
        for inside, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{inside}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


def sha256(path: Path) -> str:
    """The hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def requirements(*files: Path, extra: str = "") -> str:
    """A requirements file of these wheels or source distributions, with hashes, found in the folder of the first."""
    lines = [f"--no-index\n--find-links {files[0].parent}"]
    for path in files:
        name, version = path.name.removesuffix(".tar.gz").split("-")[:2]
        lines.append(f"{name}=={version} --hash=sha256:{sha256(path)}")
    return "\n".join([*lines, extra]) + "\n"


@contextlib.contextmanager
def index(folder: Path, *files: Path) -> Iterator[str]:
    """Serve these files as a package index on loopback; its address."""
    projects: dict[str, list[Path]] = {}
    for path in files:
        projects.setdefault(path.name.partition("-")[0].replace("_", "-"), []).append(path)
    for name, paths in projects.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for path in paths:
            (folder / name / path.name).write_bytes(path.read_bytes())
        links = "".join(f'<a href="{path.name}#sha256={sha256(path)}">{path.name}</a>\n' for path in paths)
        (folder / name / "index.html").write_text(links)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def job(folder: Path, lock: str, text: str, program: str, **environment: str) -> Path:
    """Write a job with its lock and its program; the job file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / lock).write_text(text)
    (folder / "main.py").write_text(program)
    path = folder / f"{folder.name}.yaml"
    path.write_text(json.dumps({"script": "main.py", "environment": {"lock": lock, **environment}}))
    return path
