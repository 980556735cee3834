"""The profile of a Slurm cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

from orchestrator.specs.documents.problem import Problem
from orchestrator.specs.profile import BatchProfile
from orchestrator.specs.sbatch_options import gpus_in, known_options, note_on_unknown
from orchestrator.specs.spec import setting

if TYPE_CHECKING:  # the border reads the types of fields; a submission of cached documents loads no pydantic
    from pydantic import AfterValidator, Field

    from orchestrator.specs.fields import Bytes, Count, Line, LoginHost, Seconds
    from orchestrator.specs.job import Job


class SlurmProfile(BatchProfile):
    """A Slurm cluster. orch runs on its login node, or reaches the login node over SSH."""

    kind: Literal["slurm"]
    partition: Line | None = None
    account: Line | None = None
    qos: Line | None = None
    time: Seconds | None = setting("the job's time limit", default=None)
    gres: Line | None = None
    gpus_per_node: Count | None = None
    cpus_per_gpu: Count | None = setting(
        "cores for each GPU; by default a node's cores divided by its GPUs", default=None
    )
    cpus_per_task: Count | None = None
    mem: Bytes | None = setting("memory per node", default=None)
    constraint: Line | None = None
    exclude: Line | None = None
    spares: Annotated[int, Field(ge=0, le=100_000)] | None = setting(
        "additional nodes of the job, which replace lost nodes without a requeue", default=None
    )
    login: LoginHost | None = setting("user@host of a login node to submit through", default=None)
    sbatch: Annotated[dict[Line, Line | int | bool], AfterValidator(known_options)] = setting(
        "any other option of sbatch", default_factory=dict
    )

    @property
    def nodes_of_job(self) -> int:
        """Return the number of nodes that is requested from sbatch."""
        return self.nodes + (self.spares or 0)

    def check(self) -> None:
        """Raise ValueError if fields contradict each other."""
        super().check()
        if self.spares and self.nodes == 1:
            raise ValueError("spares can't replace the first node, which runs the batch script, and nodes is 1")

    def with_one_rank(self, nodes: int | None) -> Self:
        """Return the profile with one rank per node. A profile with only one node gets no spares, because they can't
        replace the first node.
        """
        profile = super().with_one_rank(nodes)
        return replace(profile, spares=None) if profile.nodes == 1 else profile

    def notes(self) -> Sequence[str]:
        """Return a note for each option of sbatch that orch does not know."""
        return note_on_unknown(self.sbatch)

    def problems(self, job: Job) -> Sequence[Problem]:
        """Return a problem if the job needs more GPUs than the profile requests from Slurm."""
        asked = job.resources.gpus
        if asked is None or self.gpus_per_node is not None:
            return []
        given = gpus_in(self.gres or "")
        if given >= asked or (not given and self._asks_gpus()):
            return []
        what = f"only for {given} (gres: {self.gres})" if given else "for none"
        message = (
            f"asks for {asked} GPUs per node, but profile '{self.name}' asks Slurm {what}; "
            f"add 'gpus_per_node: {asked}' to the profile"
        )
        return [Problem(("resources", "gpus"), message)]

    def _asks_gpus(self) -> bool:
        options = [self.gres or "", *(f"{key}={value}" for key, value in self.sbatch.items())]
        return any("gpu" in option.lower() for option in options)
