"""The union of the profile classes of all kinds."""

from __future__ import annotations

from orchestrator.specs.pbs_profile import PbsProfile
from orchestrator.specs.profile import LocalProfile, SshProfile
from orchestrator.specs.sge_profile import SgeProfile
from orchestrator.specs.slurm_profile import SlurmProfile

AnyProfile = LocalProfile | SshProfile | SlurmProfile | SgeProfile | PbsProfile
