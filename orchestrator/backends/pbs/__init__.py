"""PBS: its commands with their parsers."""
