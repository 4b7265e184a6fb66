"""What the fake images run instead of NVIDIA's code: a small real training across ranks."""
