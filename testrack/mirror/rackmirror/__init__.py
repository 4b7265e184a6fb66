"""Build the parts of the test rack's apt mirror."""
