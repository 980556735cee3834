"""One agent a node: the gang, its leader, and the launcher that it orders about."""
