"""Code for data that crosses machines or that both sides of a connection read. Standard library only, Python 3.9,
part of node.pyz (the zip that runs on the nodes).
"""
