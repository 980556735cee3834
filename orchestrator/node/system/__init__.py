"""This machine: processes, signals, sockets, files and hardware."""
