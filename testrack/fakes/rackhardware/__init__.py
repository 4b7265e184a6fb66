"""Fake the hardware of a node of the test rack (standard library only, Python 3.8+)."""
