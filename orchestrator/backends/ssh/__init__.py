"""Machines reached over SSH: an agent each, relaunched by the supervisor."""
