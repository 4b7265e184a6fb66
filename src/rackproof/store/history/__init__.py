"""Keep the measurements of every node and GPU in every run, by hardware.

``store`` opens and queries the history. ``spool`` adds runs to it, even if the database was down. Both
import SQLAlchemy, so commands import them only where they need them.
"""
