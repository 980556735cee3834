"""Commands that start runs, and the plan of one."""
