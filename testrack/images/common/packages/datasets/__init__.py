"""Stands in for Hugging Face's datasets: reads the stand-in's saved data sets."""

from standin.flux_data import read_saved as load_from_disk

__all__ = ["load_from_disk"]
