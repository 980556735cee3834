"""The version of orch, in a module of its own: what is low may read it without importing the package's public names."""

__version__ = "0.1.0"
