"""Score and compare results: MLPerf scores, submissions, scaling studies, systems side by side."""
