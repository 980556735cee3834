"""Code for data that crosses machines or is read on both sides. Standard library only, Python 3.9, part of node.pyz."""
