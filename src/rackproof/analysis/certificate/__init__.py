"""Answer a catalogue of requirements from recorded runs and nights.

A certificate has the catalogue, the pieces of evidence, and the answers.
:func:`answering.answer_catalogue` alone derives the answers from the rest, both to make and to verify a
certificate.
"""
