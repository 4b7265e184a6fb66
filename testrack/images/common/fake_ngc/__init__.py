"""Run a small real training across ranks in the fake images, instead of NVIDIA's code."""
