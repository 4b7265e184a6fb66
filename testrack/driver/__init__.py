"""Provide the parts of the test rack's driver, rack.py. They need only the standard library."""
