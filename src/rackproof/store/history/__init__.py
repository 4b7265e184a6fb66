"""The history: measurements of every node and GPU in every run, kept by hardware.

``store`` opens and queries it, ``spool`` gets runs into it even if the database was down. Both import
SQLAlchemy, so command-line code imports them where it needs them.
"""
