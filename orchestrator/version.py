"""The version of orch. It has its own module, so that low layers can import it without the package's public names."""

__version__ = "0.1.0"
