"""Score MLPerf results by their rules (with ``mlperf-logging``), and read published results.

The commands ``score``, ``submission`` and ``compare``, the jobs' plans and records, and scaling studies use
these modules.

Import the modules one by one (``from rackproof.analysis.mlperf.score import score_folder``), so that the
command line starts without scipy.
"""
