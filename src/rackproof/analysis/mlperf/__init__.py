"""Score MLPerf results by their rules (with ``mlperf-logging``), and read published results.

Import the modules one by one (``from rackproof.analysis.mlperf.score import score_folder``), so that the
command line starts without scipy.
"""
