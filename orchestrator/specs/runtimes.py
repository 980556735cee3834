"""Describes the container of a job, from its image and the profile's runtime. This module has no side effects.
node/container builds the commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.protocol.task import Container, Mount

if TYPE_CHECKING:  # a submission of cached documents must not load pydantic
    from orchestrator.specs.job import Job
    from orchestrator.specs.profiles import AnyProfile

GPU_FLAGS: Final = {
    "docker": ("gpus", "cdi", "none"),
    "podman": ("cdi", "gpus", "none"),
    "apptainer": ("nv", "none"),
    "pyxis": ("none",),
}
"""The values of `gpu_flag` that each container runtime supports, the default first."""


def container(job: Job, profile: AnyProfile) -> Container | None:
    """Return the container in which the job's launchers run, or None if they run on the node itself."""
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
