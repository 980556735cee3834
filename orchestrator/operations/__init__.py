"""The operations behind the commands. Nothing here prints or exits."""
