"""What a person asks of a run that goes on: a fault to be tried, a profile of its steps. Pure. Python 3.9."""
