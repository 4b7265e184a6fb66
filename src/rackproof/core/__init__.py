"""Provide the data model, judging, benchmark definitions and text functions that all other rooms use."""
