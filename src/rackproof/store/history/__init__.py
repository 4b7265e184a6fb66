"""Keep the measurements of all runs in a database, by node, GPU and other hardware.

Jobs use :mod:`rackproof.store.history.client`. Commands, certificates and job validate also use
:mod:`rackproof.store.history.store`, which imports SQLAlchemy. This import takes half a second, so the
module is imported only where it is needed.
"""
