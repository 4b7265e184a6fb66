"""Keep the measurements of every node and GPU in every run, by hardware.

Jobs use :mod:`rackproof.store.history.client`. Commands, certificates and job validate also use
:mod:`rackproof.store.history.store`, which imports SQLAlchemy. That takes half a second, so it is imported
only where it is needed.
"""
