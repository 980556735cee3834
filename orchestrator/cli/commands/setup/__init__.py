"""Commands that write or list the files and lines that one begins with."""
