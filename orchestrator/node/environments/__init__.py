"""Python environments on a node: finds interpreters, and installs packages for one of them."""
