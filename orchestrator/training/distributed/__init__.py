"""The ranks of a run: their group, starting them without a launcher, stopping them together."""
