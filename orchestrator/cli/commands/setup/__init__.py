"""Commands for the first steps: they write or list files and shell lines."""
