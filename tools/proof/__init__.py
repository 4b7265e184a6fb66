"""Run the gate and the suites (`make test`, `make prove`, `make suites`)."""
