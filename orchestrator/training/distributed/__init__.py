"""The ranks of a run: their process group, starting them without a launcher, stopping them together."""
