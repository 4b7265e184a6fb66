"""Fakes Hugging Face's datasets: reads the fake's saved data sets."""

from fake_ngc.flux_data import read_saved as load_from_disk

__all__ = ["load_from_disk"]
