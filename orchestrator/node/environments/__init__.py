"""Python environments on a node: the interpreters that are there, and what is installed over one of them."""
