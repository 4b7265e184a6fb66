"""Make a submission to a round of MLPerf Training from recorded runs (``rackproof submission``).

:func:`build_submission` writes a draft of the package, runs the official package checker on it, and puts it
in place if nothing is missing or wrong. :mod:`.runs` chooses runs and reads their logs, :mod:`.description`
describes the system, :mod:`.packaging` writes files and folders, :mod:`.checking` runs the checker, and
:mod:`.rules` lists issues.
"""

from rackproof.analysis.submission.building import build_submission
from rackproof.analysis.submission.description import load_system_file
from rackproof.analysis.submission.models import Issue, Submission, SubmissionError
from rackproof.analysis.submission.runs import latest_runs

__all__ = ["Issue", "Submission", "SubmissionError", "build_submission", "latest_runs", "load_system_file"]
