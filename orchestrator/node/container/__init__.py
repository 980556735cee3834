"""Containers: the command that starts a launcher in a container, and the settings that the node adds."""
