"""The base image for the nodes' Docker daemons, which reach no registry: made by debootstrap once, then from a cache.

It stands in for the official image of that name, with Debian's python3 in it, and without torch: a container gets the
tests' interpreter and its packages by the read-only mounts of `mounts()`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.testbed.hosts import enter
from tests.testbed.layout import REPO, Cluster, ClusterError
from tests.testbed.machine import ENVIRONMENT, call, succeeds

BASE = "python:3.11-slim"
RELEASE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
SCRIPT = Path(__file__).with_name("base.sh")


def base() -> Path:
    """The base image as `docker load` takes it, made where the cache has none (about a minute); same file, same id.

    ClusterError where debootstrap fails, which needs root and Debian's mirror.
    """
    recipe = hashlib.sha256(f"{RELEASE} {PACKAGES} {BASE} {SCRIPT.read_text()}".encode()).hexdigest()[:12]
    archive = _cache() / f"base-{recipe}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            layer = Path(folder) / "layer.tar"
            _bootstrap(layer)
            whole = _pack(layer, Path(folder) / "whole.tar")
            whole.rename(archive)  # whole or not at all, also where two make it at a time
    return archive


def load(cluster: Cluster, archive: Path, *nodes: str) -> None:
    """Give the image to these nodes' daemons, or to all; those that have it already are left alone."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda node: _load(cluster, node, archive), nodes or cluster.workers))


def mounts() -> list[str]:
    """The folders that the tests' interpreter needs of this machine in a container, at the same paths.

    An interpreter in /usr, which is Debian's own, is in the image already.
    """
    roots = {REPO, Path(sys.prefix), Path(sys.base_prefix)} | {Path(entry) for entry in sys.path if entry}
    wanted = {path.resolve() for path in roots if path.is_dir()}
    return [str(path) for path in sorted(wanted) if not _is_within(path, wanted) and not _is_debians(path)]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orch-testbed"


def _bootstrap(layer: Path) -> None:
    argv = ["unshare", "--mount", "sh", str(SCRIPT), RELEASE, PACKAGES]
    with layer.open("wb") as out:
        done = subprocess.run(argv, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        words = "; ".join(done.stderr.strip().splitlines()[-3:])
        raise ClusterError(f"the base image could not be made: {words}")


def _pack(layer: Path, whole: Path) -> Path:
    """The layer with a configuration of fixed words, so that every daemon comes to the same image id."""
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = json.dumps(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
            "os": "linux",
            "config": {"Cmd": ["bash"], "Env": [f"PATH={ENVIRONMENT['PATH']}"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created": "1970-01-01T00:00:00Z"}],
        }
    ).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": [BASE], "Layers": [layer.name]}]).encode()
    with tarfile.open(whole, "w") as tar:
        for member, content in (("manifest.json", manifest), (name, config)):
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        tar.add(layer, layer.name)
    return whole


def _load(cluster: Cluster, node: str, archive: Path) -> None:
    docker = [*enter(cluster, node), "docker"]
    if not succeeds([*docker, "image", "inspect", BASE]):
        # The shell opens the archive before the host is entered, which may not see it.
        call(["sh", "-c", 'exec <"$1"; shift; exec "$@"', "sh", archive, *docker, "load", "--quiet"])


def _is_within(path: Path, others: set[Path]) -> bool:
    return any(other in path.parents for other in others)


def _is_debians(path: Path) -> bool:
    return path.parts[:2] == ("/", "usr") and path.parts[:3] != ("/", "usr", "local")
