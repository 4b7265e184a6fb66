"""Read a node's answers, and judge them.

The modules turn answers into facts and snapshots, and check health and packages. None contacts a node.
"""
