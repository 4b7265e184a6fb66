"""Find or make the runtime of a workload for bench.yml. The module of the same name documents this action."""

from __future__ import annotations

from rackproof_ansible.bench_runtime import BenchRuntime


class ActionModule(BenchRuntime):
    """The module rackproof_bench_runtime documents the options of this action."""
