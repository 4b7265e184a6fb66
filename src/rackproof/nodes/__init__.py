"""Describe a node: its facts, its snapshot, its health checks. Nothing here contacts a node."""
