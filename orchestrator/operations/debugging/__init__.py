"""Debugging of live or repeated runs: a shell, a replay, stacks, a debugger, a port, a drill."""
