"""Answers the requests of a controlling side that came over SSH."""
