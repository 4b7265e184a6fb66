"""Carry out the four playbooks' jobs: bench, provision, validate and reimage.

This room also has the commands for inventories, and the status of a fleet.
"""
