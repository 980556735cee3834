"""The Dockerfiles as they are, built by a real daemon on a base that debootstrap made."""

from __future__ import annotations

import json

import pytest

from tests.cluster.control import Control
from tests.testbed.layout import REPO

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
        timeout=100,
        DOCKER_BUILDKIT="1",
    )
    return name


@pytest.mark.cluster("docker")
@pytest.mark.parametrize("dockerfile", ["Dockerfile", "Dockerfile.cpu"])
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
