"""The data model, judging, benchmark definitions and text: what every other room uses."""
