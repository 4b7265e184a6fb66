"""Simulate fleets of GPU nodes, to measure how well a judge of measurements finds faults.

The noise of the simulated GPUs is that of real ones. The simulator was written without reading the judge of
this package, and must not learn of it, because it simulates what fleets do, not what a judge expects. Nothing
here imports the package, and a verdict is only a name.

    simulation = simulate(fleets()["common"], all_faults(), seed=1)
    for night in simulation:
        for measurement in night: ...
    simulation.truth

    # A judge is a function that is called with a night, and returns verdicts by node.
    assess(simulation, judge, {"drained": {"fail"}})

``python -m tests.fleet_simulator`` prints how well simple rules (baselines.py) and a judge of your choice
decide. Fleets and faults are data in ``fleets.yml`` and ``faults.yml``, and the options ``--fleets-file`` and
``--faults-file`` name others. The noise is in ``recorded_noise.json``.
"""
