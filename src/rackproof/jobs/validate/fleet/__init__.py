"""Plan and judge what a night does with the whole fleet.

The modules decide which nodes to measure, pair, test again and drain.
"""
