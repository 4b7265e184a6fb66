"""Find or make the runtime of a workload for bench.yml. The module of the same name documents this action."""

from __future__ import annotations

from rackproof_ansible.bench_runtime import BenchRuntime


class ActionModule(BenchRuntime):
    """Documented in plugins/modules/rackproof_bench_runtime.py."""
