"""Hold the data model, judging, benchmark definitions and text, which every other room uses."""
