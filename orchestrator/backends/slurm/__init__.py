"""One Slurm job a run, on a login node or through one."""
