"""Results compared: MLPerf scores, submissions, scaling studies, systems side by side."""
