"""Simulate fleets of GPU nodes, to measure how well a judge of measurements finds faults.

The simulator was written without reading Rackproof's judge, because it simulates what fleets do, not what a
judge expects. Nothing here imports the package rackproof, and a verdict is only a name. Some of the fleets
have noise that was recorded on real GPUs.

    simulation = simulate(fleets()["common"], all_faults(), seed=1)
    for night in simulation:
        for measurement in night: ...
    simulation.truth

    # A judge is a function that is called with a night, and returns verdicts by node.
    assess(simulation, judge, {"drained": {"fail"}})

``python -m tests.fleet_simulator`` prints how well simple rules (baselines.py) and a judge of your choice
decide. ``make fleets`` does this with the judge of validate.yml, and docs/inside/fleet-model.md has the
results. Fleets and faults are data in ``fleets.yml`` and ``faults.yml``, and the options ``--fleets-file``
and ``--faults-file`` name other files. The recorded noise is in ``recorded_noise.json``.
"""
