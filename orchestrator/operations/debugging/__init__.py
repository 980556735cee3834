"""Into a run that goes on, or once more: a shell, a replay, stacks, a debugger, a port, a drill."""
