"""Requests of a person to a live run: a fault to try, a profile of its steps. Pure. Python 3.9."""
