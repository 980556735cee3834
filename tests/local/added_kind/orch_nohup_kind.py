"""The kind that this package adds. Commands that only look at runs load no more of the package."""

from typing import Any

from orchestrator.specs.kinds import Kind, Nodes


class _Nohup(Kind):
    def nodes(self, profile: Any) -> Nodes:
        address = "127.0.0.1"
        return Nodes(("localhost",) * profile.nodes, (None,) * profile.nodes, (address,), address)


NOHUP = _Nohup("nohup", "orch_nohup_profile:NohupProfile", "orch_nohup:Nohup", on_this_machine=True)
