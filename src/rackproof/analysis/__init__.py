"""Draw conclusions from records and logs, such as a night's verdicts, scores and comparisons.

The jobs, the reports and the commands call these modules. They return results, and leave it to the callers to
store them.
"""
