"""Fake the part of Hugging Face's datasets that reads a saved data set."""

from fake_ngc.flux_data import read_saved as load_from_disk

__all__ = ["load_from_disk"]
