"""Fake the function of Hugging Face's library ``datasets`` that reads a saved data set.

The fake pip (bin/pip) installs this package, which to_webdataset.py in the image of flux needs.
"""

from fake_ngc.flux_data import read_saved as load_from_disk

__all__ = ["load_from_disk"]
