"""Score and compare results.

The modules have MLPerf scores, submissions, scaling studies, comparisons of systems, and certificates.
"""
