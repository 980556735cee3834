"""The places of a host for ranks (GPUs or slots): their names, holders, and who waits. Pure. Python 3.9."""
