"""The Dockerfiles as they are, built by a real daemon on a base that debootstrap made."""

from __future__ import annotations

import ast
import configparser
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.control import Control
from tests.patience import PATIENCE
from tests.testbed import images
from tests.testbed.docker import NETWORK
from tests.testbed.layout import REPO
from tests.testbed.machine import succeeds, wait_until

DOCKER = "/usr/bin/docker"  # Debian's own client, which has BuildKit without a plugin
PASSWORD = "hunter2"  # noqa: S105


def build(testbed: Control, dockerfile: str, base: str, *options: str) -> str:
    """Build it on n1 as alice, with pip's configuration lent to the build; the image's name."""
    name = f"{dockerfile.lower()}:built"
    folder = str(REPO / "docker")
    secret = f"[global]\nindex-url = https://me:{PASSWORD}@mirror.invalid/simple\n"
    testbed.output("n1", "sh", "-c", "cat >~/pip.conf", stdin=secret)
    testbed.output(
        *("n1", DOCKER, "build", "--quiet", "--network=host", f"--file={folder}/{dockerfile}", f"--tag={name}"),
        *(f"--build-arg=BASE={base}", "--build-arg=PACKAGES=", "--secret=id=pip,src=/home/alice/pip.conf"),
        *(*options, folder),
        timeout=PATIENCE,
        DOCKER_BUILDKIT="1",
    )
    return name


ALSO = pytest.mark.full(
    "tests/cluster/test_images.py::test_a_dockerfile_makes_a_small_image_that_is_nobodys_root_and_keeps_no_secret"
)


@pytest.mark.cluster("docker")
@pytest.mark.parametrize("dockerfile", [pytest.param("Dockerfile", marks=ALSO), "Dockerfile.cpu"])
def test_a_dockerfile_makes_a_small_image_that_is_nobodys_root_and_keeps_no_secret(
    testbed: Control, image: str, dockerfile: str
) -> None:
    name = build(testbed, dockerfile, image)
    made, base = (json.loads(testbed.output("n1", DOCKER, "image", "inspect", each))[0] for each in (name, image))
    assert made["Size"] - base["Size"] < 40 << 20  # without its packages; a venv holds pip
    assert len(made["RootFS"]["Layers"]) - len(base["RootFS"]["Layers"]) <= 2
    script = "id -un; python3 -c 'import sys; print(sys.prefix)'; ls /etc/pip.conf 2>&-"
    said = testbed.run("n1", DOCKER, "run", "--rm", "--network=none", name, "sh", "-c", script).out.split()
    assert said == ["ranks", "/opt/venv" if dockerfile == "Dockerfile.cpu" else "/usr"]
    history = testbed.output("n1", DOCKER, "history", "--no-trunc", name)
    assert "PACKAGES" in history
    assert PASSWORD not in history + json.dumps(made)


@contextmanager
def daemon() -> Iterator[dict[str, str]]:
    """A Docker daemon of its own on this machine, beside any other; the variables with which clients find it."""
    folder = Path(tempfile.mkdtemp(prefix="orch-"))  # a short path: it holds sockets
    where = [f"--{name}={folder / name}" for name in ("data-root", "exec-root", "pidfile")]
    host = f"unix://{folder / 'sock'}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(["dockerd", *where, f"--host={host}", *NETWORK], stdout=log, stderr=log)
    try:
        wait_until(lambda: succeeds([DOCKER, f"--host={host}", "info"]), "dockerd", folder / "log")
        yield {**os.environ, "DOCKER_HOST": host, "DOCKER_BUILDKIT": "1", "ORCH_HOME": str(folder / "home")}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if line.split()[4].startswith(f"{folder}/"):  # it keeps the host's network namespace by a mount
                subprocess.run(["umount", line.split()[4]], check=True)
        shutil.rmtree(folder)


def secrets(folder: Path) -> list[str]:
    """The options that lend this machine's way to its packages to a build."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    config = configparser.ConfigParser(interpolation=None)
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        section = "global" if section == ":env:" else section
        config.setdefault(section, {})[key] = ast.literal_eval(value)
    with (folder / "pip.conf").open("w") as file:
        config.write(file)
    authorities = ssl.get_default_verify_paths().cafile
    options = [f"--secret=id=pip,src={folder / 'pip.conf'}"]
    return [*options, *([f"--secret=id=certificates,src={authorities}"] if authorities else [])]


@pytest.mark.soak(alone="6 GB of packages and some minutes")
@pytest.mark.timeout(1800)
def test_two_ranks_train_in_the_image_as_it_is_built_for_users(tmp_path: Path) -> None:
    with daemon() as env:

        def call(*argv: str) -> str:
            done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            return done.stdout

        call(DOCKER, "load", f"--input={images.base()}")
        folder = str(REPO / "docker")
        base = ("--network=host", f"--build-arg=BASE={images.BASE}")
        call(DOCKER, "build", *base, *secrets(tmp_path), "--tag=orch-train", f"--file={folder}/Dockerfile.cpu", folder)
        (tmp_path / "here.yaml").write_text("kind: local\nnproc_per_node: 2\nruntime: docker\n")
        job = ("digits_ddp", "-p", "here.yaml", "--set", "job.container.image=orch-train")
        said = call(sys.executable, "-m", "orchestrator.cli", "submit", *job, "--follow")
        assert "world size 2" in said
        assert "on 360 test images" in said
        assert call(DOCKER, "ps", "--all", "--quiet") == ""
