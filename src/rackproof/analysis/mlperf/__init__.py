"""Scores: MLPerf rules (through ``mlperf-logging``), published results, scaling efficiency.

Modules are imported one by one (``from rackproof.analysis.mlperf.score import score_folder``), so that the
command line starts without scipy.
"""
