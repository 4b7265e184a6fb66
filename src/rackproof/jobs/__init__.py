"""Carry out the four playbooks' jobs: bench, provision, validate and reimage.

The code of the commands for inventories and for a fleet's status is here, too.
"""
