"""A submission to an MLPerf training round, out of runs: ``rackproof submission``.

:func:`build` lays the package out, asks the official package checker about it, and puts it in place if
nothing is missing or wrong. The parts: :mod:`~rackproof.submission.runs` chooses runs and reads their
logs, :mod:`~rackproof.submission.description` describes the system,
:mod:`~rackproof.submission.packaging` knows files and folders, :mod:`~rackproof.submission.checking`
asks the checker, :mod:`~rackproof.submission.rules` says what is missing or wrong.
"""

from rackproof.submission.building import build
from rackproof.submission.description import load_system_file
from rackproof.submission.models import Issue, Submission, SubmissionError
from rackproof.submission.runs import latest_runs

__all__ = ["Issue", "Submission", "SubmissionError", "build", "latest_runs", "load_system_file"]
