"""Provide the parts of the test rack's driver, rack.py. Standard library only."""
