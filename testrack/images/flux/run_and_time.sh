#!/bin/bash
# One rank of a trial.
exec python3 -u ./train.py
