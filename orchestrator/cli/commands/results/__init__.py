"""Commands about the results of runs."""
