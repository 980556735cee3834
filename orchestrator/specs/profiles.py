"""The type of profiles of any kind."""

from __future__ import annotations

from orchestrator.specs.profile import ProfileBase

AnyProfile = ProfileBase
