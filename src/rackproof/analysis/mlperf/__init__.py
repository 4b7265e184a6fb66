"""Score MLPerf results by their rules (with ``mlperf-logging``), and read published results.

``mlperf-logging`` is MLCommons' package with the official checkers. The commands ``score``, ``submission``
and ``compare``, job bench, and scaling studies use these modules.

Import the modules one by one (``from rackproof.analysis.mlperf.score import score_folder``), so that the
command line starts without scipy.
"""
