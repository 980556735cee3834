"""Commands that start runs, and the command that plans one."""
