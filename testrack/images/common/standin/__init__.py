"""What the stand-in images run instead of NVIDIA's code: a small real training across ranks."""
