"""Fake the parts of NVIDIA's mlperf-common that the published run.sub call."""
