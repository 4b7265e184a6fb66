"""Keep the measurements of every node and GPU in every run, by hardware.

Jobs use :mod:`rackproof.store.history.client`, and commands :mod:`rackproof.store.history.store`. The
second one imports SQLAlchemy, so commands import it only where they need it.
"""
