"""Certificates: the answers of recorded runs and nights to a catalogue of requirements.

A certificate holds the catalogue, the pieces of evidence that were found, and the answers. The answers follow
from the rest by :func:`answering.answer_catalogue` alone, which its making and its verification both call.
"""
