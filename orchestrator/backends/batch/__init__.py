"""Runs as jobs of a batch scheduler, whose programs run on this machine or on a login node."""
