"""What a person asks of ranks that run: their stacks, a port of their node, a debugger."""
