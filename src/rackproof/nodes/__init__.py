"""Read a node's answers, and judge them.

These modules have facts, snapshots, health checks and packages. None of them contacts a node.
"""
