"""From what is typed to a run that is on its way: submits, sweeps, launch lines, functions, hand-overs."""
