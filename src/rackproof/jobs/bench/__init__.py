"""Plan, launch, follow, record and judge the benchmark runs of bench.yml and ``rackproof bench``."""
