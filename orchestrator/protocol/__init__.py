"""What crosses machines, or is read on both sides: standard library, Python 3.9, part of node.pyz."""
