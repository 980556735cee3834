"""Tools for people who inspect running ranks: stacks, a profile, a port of their node, a debugger."""
