"""The operations behind the commands. No module of this package prints or exits."""
