"""Draw conclusions from records and logs, such as a night's verdicts, scores and comparisons.

The jobs, the reports and the commands call these modules, and show or store the results. No module here
writes a run.
"""
