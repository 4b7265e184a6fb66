"""Answer a catalogue of requirements from recorded runs and nights.

The commands of :mod:`rackproof.cli.evidence` call this package. A certificate is an HTML page that contains
JSON, and perhaps its signature. The JSON has the catalogue, the pieces of evidence, and the answers.
:func:`answering.answer_catalogue` alone derives the answers from the rest, both to make a certificate and to
verify it. :mod:`.making` makes one, and :mod:`.verification` verifies it.
"""
