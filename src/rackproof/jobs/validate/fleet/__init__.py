"""A fleet's night: its numbers judged against floors, own history and fleet (``nights``).

Thresholds are linted by ``thresholds``; ``pairing`` plans the pairs of nodes of each night.
"""
