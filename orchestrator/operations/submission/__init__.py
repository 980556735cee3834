"""From the user's input to a started run: submits, sweeps, launch lines, functions, hand-overs."""
