"""Fleets made up from recorded noise, for measuring how well any judge of measurements decides.

It was written without reading the judge of this package, and must not learn of it: what is simulated here is
what fleets do, not what a judge expects. Nothing here imports the package, and nothing here knows a verdict
but by name.

    simulation = simulate(fleets()["common"], all_faults(), seed=1)
    for night in simulation:
        for measurement in night: ...
    simulation.truth

    assess(simulation, judge, {"drained": {"fail"}})     # any judge: called with a night, returns verdicts
    by node

``python -m tests.fleet_simulator`` prints the figures of the baselines and of a judge of your choice. Fleets
and faults are data (``fleets.yml``, ``faults.yml``; others by ``--fleets-file`` and ``--faults-file``);
noise is ``recorded_noise.json``.
"""
