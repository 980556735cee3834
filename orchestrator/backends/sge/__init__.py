"""Grid Engine: its commands with their parsers."""
