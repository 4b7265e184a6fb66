"""What a node is: its facts, its snapshot, its health checks. Nothing here contacts a node."""
