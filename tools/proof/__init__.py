"""The gate and the suites of proofs: `make test`, `make prove`, `make suites`."""
