"""The profile of agents that nohup keeps alive."""

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.specs.profile import ProfileBase


class NohupProfile(ProfileBase):
    """Agents on this machine, started by nohup."""

    kind: Literal["nohup"]
    niceness: Annotated[int, Field(ge=0, le=19)] = 0
