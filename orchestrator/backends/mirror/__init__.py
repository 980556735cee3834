"""What SSH and Slurm through a login node share: hosts, uploads, copies of what nodes write."""
