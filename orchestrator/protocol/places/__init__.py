"""The places of a host that ranks can have, GPUs or slots: their names, holders, and who waits. Pure. Python 3.9."""
