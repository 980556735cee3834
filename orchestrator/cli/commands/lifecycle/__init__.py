"""Commands about a run from its start to its removal."""
