"""The parts of the test rack's driver, rack.py; standard library only."""
