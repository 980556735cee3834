"""Agents that orch starts itself: on this machine, or on several machines over SSH."""
