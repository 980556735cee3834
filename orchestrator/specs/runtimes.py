"""The container that a job asks for, in the runtime of its profile; pure. What it is started by: node/containers.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.protocol.task import Container, Mount

if TYPE_CHECKING:  # a submit of files that were read before must not wait for pydantic
    from orchestrator.specs.job import Job
    from orchestrator.specs.profiles import AnyProfile

GPU_FLAGS: Final = {
    "docker": ("gpus", "cdi", "none"),
    "podman": ("cdi", "gpus", "none"),
    "apptainer": ("nv", "none"),
    "pyxis": ("none",),
}
"""How each runtime can be given GPUs, its usual way first."""


def container(job: Job, profile: AnyProfile) -> Container | None:
    """Return what the launchers of this job run in; None where they start on the node itself."""
    if profile.runtime == "none" or job.container is None:
        return None
    asked = job.container
    return Container(
        runtime=profile.runtime,
        image=asked.image,
        gpu_flag=GPU_FLAGS[profile.runtime][0] if profile.gpu_flag == "auto" else profile.gpu_flag,
        mounts=tuple(Mount(each.source, each.target, each.read_only) for each in asked.mounts),
        shm=asked.shm,
        pull=asked.pull,
        user=asked.user,
        cap_add=asked.cap_add,
        cpus=job.resources.cpus,
        mem=job.resources.mem,
    )
