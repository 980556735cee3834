"""What is to be told of runs, where, and what was."""
