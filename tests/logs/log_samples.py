"""Provide small logs that parse to a pass, for the parsers' tests and for the fuzzers, which damage them.

Each sample is a whole log of one format of :data:`rackproof.logs.FORMATS`, or of a variant of one. Most
figures are made up, but agree with each other, such as the size, time and bandwidth of a row. :data:`PASSING`
lists all samples, and :data:`END_OF_PROOF` the text up to which a log is needed for a pass.
"""

from __future__ import annotations

import json
from typing import Any

from rackproof.core.training_limits import read_fewest_samples, read_hyperparameters
from rackproof.logs._mlperf import TARGETS


def event(key: str, value: Any = None, at: int = 0, prefix: str = "", **meta: Any) -> str:
    """Return one MLLOG line, ``at`` seconds after an arbitrary moment."""
    body = {
        "namespace": "",
        "time_ms": 1_700_000_000_000 + at * 1000,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": {"file": "train.py", "lineno": 1, **meta},
    }
    return f"{prefix}:::MLLOG {json.dumps(body)}\n"


def hyperparameters(benchmark: str, at: int = 1) -> list[str]:
    """Return a line for each hyperparameter that all published logs of a benchmark state."""
    table = read_hyperparameters().get(benchmark, {})
    return [event(name, (least + most) / 2, at) for name, (least, most) in table.items()]


def mllog(
    *extra: str,
    after: str = "",
    status: str | None = "success",
    final: Any = 0.921,
    before: float = 0.95,
    samples: int = 3072,
    benchmark: str = "llama2_70b_lora",
) -> bytes:
    """Return a whole log of a benchmark. ``extra`` lines are in the middle, and ``after`` is at the end.

    The log has two evaluations, with the values ``before`` and ``final``. The last one is after ``samples``
    samples. With ``status`` None, the log has no run_stop.
    """
    lines = [
        "some words before\n",
        event("cache_clear", True, 0),
        event("init_start", None, 1),
        event("submission_benchmark", benchmark, 1),
        event("global_batch_size", 8, 1),
        event("seed", 42, 1),
        *hyperparameters(benchmark),
        event("init_stop", None, 60),
        event("run_start", None, 60),
        event("tracked_stats", {"train_loss": 1.5}, 70, step=10),
        event("eval_accuracy", before, 120, samples_count=samples // 2),
        event("tracked_stats", {"train_step_time": 8 * 300 / samples}, 130, step=100),
        *extra,
        event("tracked_stats", {"train_loss": 1.2}, 300, step=200),
        event("eval_accuracy", final, 359, samples_count=samples),
    ]
    if status is not None:
        lines.append(event("run_stop", None, 360, status=status))
    return "".join([*lines, after]).encode()


def mllog_of(benchmark: str, final: Any, *extra: str) -> bytes:
    """Return a whole log of a benchmark, whose first evaluation is a little worse than the last one.

    A run ends at the first evaluation that reaches the target.
    """
    targets = TARGETS.get(benchmark, ())
    before = final * (1.05 if targets and targets[0].at_most else 0.95)
    enough = read_fewest_samples().get(benchmark, ((8, 3072),))[-1][1]
    return mllog(*extra, final=final, before=before, samples=int(enough) // 16 * 16, benchmark=benchmark)


def mll(key: str, value: Any = None, at: float = 0, **meta: Any) -> str:
    """Return one line of round 0.6."""
    return f":::MLL {1_570_000_000 + at:.3f} {key}: {json.dumps({'value': value, 'metadata': meta})}\n"


def stated06(benchmark: str) -> str:
    """Return what every log of round 0.6 states before its run starts."""
    keys = ("submission_org", "submission_division", "submission_status", "submission_platform")
    return (
        mll("submission_benchmark", benchmark)
        + "".join(mll(key, "example") for key in keys)
        + mll("cache_clear", True)
        + mll("global_batch_size", 2048)
        + mll("init_start", None, 1)
        + mll("init_stop", None, 9)
    )


MLL06 = (
    stated06("ssd")
    + mll("run_start", None, 10)
    + mll("block_start", None, 10, first_epoch_num=1)
    + mll("epoch_start", None, 10, epoch_num=1)
    + "Iteration:      0, Loss function: 23.2, Average Loss: 0.02, avg. samples / sec: 80.0\n"
    + "Iteration:     20, Loss function: 20.7, Average Loss: 0.44, avg. samples / sec: 4000.0\n"
    + "Iteration:     40, Loss function: 17.9, Average Loss: 0.83, avg. samples / sec: 4200.0\n"
    + mll("epoch_stop", None, 300, epoch_num=1)
    + mll("eval_start", None, 300, epoch_num=44)
    + mll("eval_accuracy", 0.2111, 301, epoch_num=44)
    + mll("eval_stop", None, 301, epoch_num=44)
    + mll("eval_start", None, 599, epoch_num=49)
    + mll("eval_accuracy", 0.2305, 600, epoch_num=49)
    + mll("eval_stop", None, 600, epoch_num=49)
    + mll("block_stop", None, 601, first_epoch_num=1)
    + mll("run_stop", None, 610, status="success")
    + "RESULT,SINGLE_STAGE_DETECTOR,,640,nvidia,2019-12-07 03:51:54 PM\n"
).encode()

MINIGO = (
    mll("submission_benchmark", "minigo")
    + mll("init_start", None, 1)
    + mll("run_start", None, 10)
    + "I1209 21:37:06.07 1 utils.py:84] Iteration time: 120.0 seconds\n"
    + "I1209 21:39:06.07 1 utils.py:84] Iteration time: 60.0 seconds\n"
    + mll("eval_accuracy", 0.52, 900, epoch_num=18)
    + mll("eval_result", None, 901, iteration=18, timestamp=600.0)
    + "RESULT,REINFORCEMENT,900,nvidia,2019-12-09 09:33:36 PM\n"
).encode()
"""A log of minigo, whose code logs no run_stop. Its eval_result is the end of the run."""

MLP05 = b"""\
:::MLPv0.5.0 resnet 1541050000.5 (main.cpp:10) run_start
:::MLPv0.5.0 resnet 1541050001 (main.cpp:11) input_batch_size: 256
:::MLPv0.5.0 resnet 1541053363 (solver.cpp:573) eval_accuracy: {"epoch": 59, "value": 0.74982}
:::MLPv0.5.0 resnet 1541053600.5 (main.cpp:20) run_stop: {"success": true}
:::MLPv0.5.0 resnet 1541053601 (main.cpp:21) run_final
"""

TF_CNN = b"""\
TensorFlow:  1.15
Model:       resnet50
Batch size:  256 global
             256 per device
Num batches: 100
Running warm up
Done warm up
Step\tImg/sec\ttotal_loss
1\timages/sec: 325.8 +/- 0.0 (jitter = 0.0)\t7.931 1593278690
100\timages/sec: 326.7 +/- 0.1 (jitter = 0.7)\t7.839 1593278768
----------------------------------------------------------------
total images/sec: 326.58
----------------------------------------------------------------
"""

MXNET = b"""\
INFO:root:start with arguments Namespace(batch_size=128, gpus='0', lr=0.05, network='lenet', num_epochs=2)
INFO:root:Epoch[0] Batch [0-50]\tSpeed: 3000.00 samples/sec\taccuracy=0.842831
INFO:root:Epoch[0] Batch [50-100]\tSpeed: 3200.00 samples/sec\taccuracy=0.960586
INFO:root:Epoch[0] Train-accuracy=0.911166
INFO:root:Epoch[0] Time cost=21.000
INFO:root:Epoch[0] Validation-accuracy=0.974609
INFO:root:Epoch[1] Batch [0-50]\tSpeed: 3400.00 samples/sec\taccuracy=0.977750
INFO:root:Epoch[1] Train-accuracy=0.979260
INFO:root:Epoch[1] Time cost=20.000
INFO:root:Epoch[1] Validation-accuracy=0.983496
"""

NCCL = b"""\
# nccl-tests version 2.17.1 nccl-headers=22803 nccl-library=22803
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 2224200 step: 278025(factor) validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid      1 on host device  0 [0000:1b:00] NVIDIA H200
#  Rank  1 Group  0 Pid      1 on host device  1 [0000:43:00] NVIDIA H200
#
#                                        out-of-place                       in-place
#  size  count   type  redop  root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#   (B)  (elements)                    (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
      8      2  float    sum    -1    10.00    0.00    0.00       0    11.00    0.00    0.00       0
  2224200 556050  float    sum    -1    10.00  222.42  222.42       0     9.58  232.17  232.17       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 113.65
#
"""


def nccl_json(**changes: Any) -> bytes:
    """Return the JSON that ``-J`` of nccl-tests writes.

    ``changes`` replace keys of the document. The value ``...`` removes a key.
    """
    place = {"time": 10.0, "alg_bw": 200.0, "bus_bw": 300.0, "nwrong": 0.0}
    faster = {**place, "time": 9.677419, "alg_bw": 206.6667, "bus_bw": 310.0}
    row = {"size": 2_000_000, "count": 500_000, "type": "float", "redop": "sum", "root": "    -1"}
    document = {
        "version": 2,
        "start_time": "2026-01-01 00:00:00",
        "args": ["./build/all_reduce_perf", "-J", "x"],
        "env": ["SECRET=hidden"],
        "nccl_version": 22803,
        "config": {
            "minimum_bytes": 2_000_000,
            "maximum_bytes": 2_000_000,
            "validation": 1,
            "devices": [{"rank": rank, "device_info": "H200"} for rank in range(4)],
        },
        "results": [{**row, "out_of_place": place, "in_place": faster}],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 305.0, "okay": "unchecked"},
        "end_time": "2026-01-01 00:00:10",
    }
    document.update(changes)
    return json.dumps({key: value for key, value in document.items() if value is not ...}).encode()


NVBANDWIDTH = b"""\
nvbandwidth Version: v0.6
Built from Git version: v0.6

CUDA Runtime Version: 12040
Driver Version: 550.54.15

Device 0: NVIDIA H200 (00000009:01:00)
Device 1: NVIDIA H200 (00000009:02:00)

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    394.00
 1    396.00       N/A

SUM device_to_device_memcpy_read_ce 790.00

Waived:
NOTE: The reported results may not reflect the full capabilities of the platform.
"""

GPU_BURN = b"""\
GPU 0: NVIDIA H200 (UUID: GPU-00000000-0000-4000-8000-000000000001)
GPU 1: NVIDIA H200 (UUID: GPU-00000000-0000-4000-8000-000000000002)
50.0%  proc'd: 2261 (7150 Gflop/s) - 2261 (7050 Gflop/s)   errors: 0 - 0   temps: 38 C - 39 C
100.0%  proc'd: 6783 (16942 Gflop/s) - 6783 (16842 Gflop/s)   errors: 0 - 0   temps: 58 C - 59 C
Killing processes.. done

Tested 2 GPUs:
\tGPU 0: OK
\tGPU 1: OK
"""

PERFTEST = b"""\
                    RDMA_Write BW Test
 Link type       : IB
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             395.10             394.20             0.751895
---------------------------------------------------------------------------------------
"""

NVIDIA_SMI_XML = b"""\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
<driver_version>580.1</driver_version>
<cuda_version>13.0</cuda_version>
<attached_gpus>1</attached_gpus>
<gpu id="00000000:00:06.0">
<product_name>NVIDIA H200</product_name>
<serial>1650000000001</serial>
<uuid>GPU-00000000-0000-4000-8000-000000000001</uuid>
<vbios_version>96.00</vbios_version>
<fb_memory_usage><total>143771 MiB</total><reserved>616 MiB</reserved><used>0 MiB</used>
<free>143156 MiB</free></fb_memory_usage>
<temperature><gpu_temp>31 C</gpu_temp><gpu_temp_tlimit>52 C</gpu_temp_tlimit>
<memory_temp>40 C</memory_temp></temperature>
<ecc_errors><volatile><sram_correctable>0</sram_correctable>
<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
<dram_correctable>0</dram_correctable><dram_uncorrectable>0</dram_uncorrectable></volatile>
<aggregate><sram_correctable>0</sram_correctable>
<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
<dram_correctable>0</dram_correctable><dram_uncorrectable>0</dram_uncorrectable>
<sram_threshold_exceeded>No</sram_threshold_exceeded></aggregate>
<channel_repair_pending>No</channel_repair_pending><tpc_repair_pending>No</tpc_repair_pending></ecc_errors>
<remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_unc>0</remapped_row_unc>
<remapped_row_pending>No</remapped_row_pending>
<remapped_row_failure>No</remapped_row_failure></remapped_rows>
<gpu_power_readings><instant_power_draw>77.36 W</instant_power_draw>
<current_power_limit>700.00 W</current_power_limit>
<default_power_limit>700.00 W</default_power_limit></gpu_power_readings>
<performance_state>P0</performance_state>
<gpu_recovery_action>None</gpu_recovery_action>
<mig_mode><current_mig>Disabled</current_mig></mig_mode>
<pci><pci_bus>00</pci_bus><pci_bus_id>00000000:00:06.0</pci_bus_id><pci_gpu_link_info>
<pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>5</current_link_gen></pcie_gen>
<link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths>
</pci_gpu_link_info></pci>
<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
<clocks_event_reason_sw_power_cap>Not Active</clocks_event_reason_sw_power_cap>
<clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>
<clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
<clocks_event_reason_hw_power_brake_slowdown>Not Active</clocks_event_reason_hw_power_brake_slowdown>
<clocks_event_reason_sw_thermal_slowdown>Not Active</clocks_event_reason_sw_thermal_slowdown>
</clocks_event_reasons>
<clocks_event_reasons_counters>
<clocks_event_reasons_counters_sw_power_cap>0 us</clocks_event_reasons_counters_sw_power_cap>
<clocks_event_reasons_counters_sw_therm_slowdown>0 us</clocks_event_reasons_counters_sw_therm_slowdown>
<clocks_event_reasons_counters_hw_therm_slowdown>0 us</clocks_event_reasons_counters_hw_therm_slowdown>
<clocks_event_reasons_counters_hw_power_brake>0 us</clocks_event_reasons_counters_hw_power_brake>
</clocks_event_reasons_counters>
<utilization><gpu_util>0 %</gpu_util></utilization>
<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
<retired_pages><pending_retirement>N/A</pending_retirement></retired_pages>
<clocks><sm_clock>1980 MHz</sm_clock></clocks>
<fabric><state>N/A</state><status>N/A</status><health><summary>N/A</summary></health></fabric>
<processes>
</processes>
</gpu>
</nvidia_smi_log>
"""

NVIDIA_SMI_TEXT = b"""\

==============NVSMI LOG==============

Timestamp                                 : Sat Nov 21 08:51:43 2026
Driver Version                            : 580.159.04
CUDA Version                              : 13.0

Attached GPUs                             : 1
GPU 00000000:00:06.0
    Product Name                          : NVIDIA H200
    Product Brand                         : NVIDIA
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    Serial Number                         : 1650000000001
    GPU UUID                              : GPU-00000000-0000-4000-8000-000000000001
    VBIOS Version                         : 96.00.A5.00.1A
    GPU Recovery Action                   : None
    Performance State                     : P0
    PCI
        Bus                               : 0x00
        Bus Id                            : 00000000:00:06.0
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
            Link Width
                Max                       : 16x
                Current                   : 16x
        Tx Throughput                     : 1058 KB/s
    Clocks Event Reasons
        Idle                              : Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
    Clocks Event Reasons Counters
        SW Power Capping                  : 0 us
        SW Thermal Slowdown               : 0 us
        HW Thermal Slowdown               : 0 us
        HW Power Braking                  : 0 us
    FB Memory Usage
        Total                             : 143771 MiB
        Reserved                          : 616 MiB
        Used                              : 3 MiB
        Free                              : 143153 MiB
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
            SRAM Threshold Exceeded       : No
        Channel Repair Pending            : No
        TPC Repair Pending                : No
    Retired Pages
        Pending Page Blacklist            : N/A
    Utilization
        GPU                               : 0 %
    Fabric
        State                             : N/A
        Status                            : N/A
        Health
            Summary                       : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 31 C
        GPU T.Limit Temp                  : 52 C
        GPU Shutdown T.Limit Temp         : -8 C
        Memory Current Temp               : 40 C
    GPU Power Readings
        Average Power Draw                : 76.61 W
        Instantaneous Power Draw          : 77.49 W
        Current Power Limit               : 700.00 W
        Default Power Limit               : 700.00 W
    Clocks
        Graphics                          : 1980 MHz
        SM                                : 1980 MHz
    Processes                             : None

"""

IDLE_GPU: dict[str, Any] = {
    "memory_used_mib": 0.0,
    "utilisation_percent": 0.0,
    "sm_clock_mhz": 345.0,
    "temperature_c": 31.0,
    "power_w": 77.36,
    "throttle": 1.0,
    "processes": [],
}
"""The entries of `gpu_state` for a GPU that nothing uses, without its UUID and the moment."""

NVIDIA_SMI_CSV = b"""\
index, name, uuid, temperature.gpu, power.draw [W], ecc.errors.uncorrected.volatile.total
0, NVIDIA H200, GPU-00000000-0000-4000-8000-000000000001, 31, 77.49 W, 0
1, NVIDIA H200, GPU-00000000-0000-4000-8000-000000000002, 33, 78.17 W, 0
"""

# An H200 has 18 NVLinks, of 26.562 GB/s each.
_LINKS = b"".join(b"\t Link %d: 26.562 GB/s\n" % link for link in range(18))
NVLINK = b"".join(
    b"GPU %d: NVIDIA H200 (UUID: GPU-00000000-0000-4000-8000-00000000000%d)\n" % (at, at + 1) + _LINKS
    for at in (0, 1)
)

TOPO = b"""\
\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\t0-63\t0\t\tN/A
GPU1\tNV18\t X \t0-63\t0\t\tN/A

Legend:
"""

_DCGM_ROWS = (
    ("-----  Metadata  ----------+", ""),
    ("DCGM Version", "4.2.3"),
    ("GPU Device IDs Detected", "2335, 2335"),
    ("-----  Deployment  --------+", ""),
    *(("software", "Pass"), ("", "GPU0: Pass"), ("", "GPU1: Pass")),
    ("-----  Hardware  ----------+", ""),
    *(("memory", "Pass"), ("", "GPU0: Pass"), ("", "GPU1: Pass")),
    ("-----  Integration  -------+", ""),
    *(("pcie", "Pass"), ("", "GPU0: Pass"), ("", "GPU1: Pass")),
)
_DCGM_RULE = f"+{'-' * 27}+{'-' * 48}+\n"
# The form is that of NVIDIA/DCGM issue 253.
DCGM = (
    "Successfully ran diagnostic for group.\n"
    + _DCGM_RULE
    + f"| {'Diagnostic':25} | {'Result':46} |\n+{'=' * 27}+{'=' * 48}+\n"
    + "".join(
        f"|{name}{'-' * 48}|\n" if name.startswith("-") else f"| {name:25} | {word:46} |\n"
        for name, word in _DCGM_ROWS
    )
    + _DCGM_RULE
).encode()


def dcgm_json(name: str = "DCGM Diagnostic", **statuses: str) -> bytes:
    """Return a diagnostic of two GPUs as JSON. ``statuses`` gives tests another status than Pass."""
    tests = [
        {
            "name": test,
            "results": [
                {
                    "entity_group": "GPU",
                    "entity_group_id": 1,
                    "entity_id": gpu,
                    "status": statuses.get(test, "Pass"),
                }
                for gpu in (0, 1)
            ],
            "test_summary": {"status": statuses.get(test, "Pass")},
        }
        for test in ("software", "memory", "pcie")
    ]
    body = {"test_categories": [{"category": "Deployment", "tests": tests}]}
    groups = [{"entity_group": "GPU", "entity_group_id": 1, "entities": [{"entity_id": 0}, {"entity_id": 1}]}]
    return (
        json.dumps({name: body, "entity_groups": groups, "metadata": {"version": "4.2.3"}}).encode() + b"\n"
    )


HPL = b"""\
================================================================================
HPLinpack 2.3  --  High-Performance Linpack benchmark  --   December 2, 2018
================================================================================
The following parameter values will be used:

N      :  384000
NB     :     384
PMAP   : Row-major process mapping
P      :       1
Q      :       2
PFACT  :   Crout
NBMIN  :      48
NDIV   :       8
RFACT  :   Right
BCAST  :  HybBcast
DEPTH  :       0
SWAP   : Mix (threshold = 64)

- Computational tests pass if scaled residuals are less than                16.0

================================================================================
T/V                N    NB     P     Q               Time                 Gflops
--------------------------------------------------------------------------------
WR0XR8C48      384000   384     1     2            4645.37             8.1261e+03
HPL_pdgesv() start time Fri Feb  3 16:33:45 2023

HPL_pdgesv() end time   Fri Feb  3 17:51:10 2023

--------------------------------------------------------------------------------
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   4.12139792e-03 ...... PASSED
================================================================================

Finished      1 tests with the following results:
              1 tests completed and passed residual checks,
              0 tests completed and failed residual checks,
              0 tests skipped because of illegal input values.
--------------------------------------------------------------------------------

End of Tests.
"""
"""The tables are from tests/data/hpl_results.log of microsoft/superbenchmark."""

STREAM = b"""\
-------------------------------------------------------------
STREAM version $Revision: 5.10 $
-------------------------------------------------------------
This system uses 8 bytes per array element.
-------------------------------------------------------------
Array size = 120000000 (elements), Offset = 0 (elements)
Each kernel will be executed 200 times.
-------------------------------------------------------------
Function    Best Rate MB/s  Avg time     Min time     Max time
Copy:          108180.5     0.017811     0.017748     0.017950
Scale:         108572.8     0.017753     0.017684     0.017948
Add:           104571.7     0.027626     0.027541     0.028479
Triad:         105256.0     0.027448     0.027362     0.027785
-------------------------------------------------------------
Solution Validates: avg error less than 1.000000e-13 on all three arrays
-------------------------------------------------------------
"""
"""The tables are from tests/data/streamResultNeo.log of microsoft/superbenchmark."""


def fio_json(**changes: Any) -> bytes:
    """Return the JSON of fio for a job with two clones, which read for ten seconds.

    ``changes`` replace values of the first clone's reads. The values are those of one NVMe disk.
    """
    reads = {
        "io_bytes": 29360128000,
        "bw_bytes": 2936012800,
        "iops": 2800.0,
        "runtime": 10000,
        "total_ios": 28000,
        "short_ios": 0,
        "drop_ios": 0,
        "clat_ns": {"mean": 356000.0, "percentile": {"99.000000": 1011712}},
    }
    options = {"name": "read", "rw": "read", "bs": "1m", "size": "64g", "numjobs": "2", "runtime": "10"}
    clones = [
        {"jobname": "read", "error": 0, "job options": options, "read": read, "job_runtime": 10000}
        for read in ({**reads, **changes}, reads)
    ]
    root = {"fio version": "fio-3.33", "global options": {"direct": "1"}, "jobs": clones}
    return f"{json.dumps(root, indent=2)}\n".encode()


XID = b"[1.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n"

PASSING: dict[str, bytes] = {
    "mllog": mllog(),
    "mll06": MLL06,
    "minigo": MINIGO,
    "mlp05": MLP05,
    "tf_cnn": TF_CNN,
    "mxnet": MXNET,
    "nccl_tests": NCCL,
    "nccl_json": nccl_json(),
    "nvbandwidth": NVBANDWIDTH,
    "gpu_burn": GPU_BURN,
    "ib_write_bw": PERFTEST,
    "nvidia_smi_xml": NVIDIA_SMI_XML,
    "nvidia_smi_text": NVIDIA_SMI_TEXT,
    "nvidia_smi_csv": NVIDIA_SMI_CSV,
    "nvlink_status": NVLINK,
    "nvidia_smi_topo": TOPO,
    "dcgmi_diag": DCGM,
    "dcgm_json": dcgm_json(),
    "hpl": HPL,
    "stream": STREAM,
    "fio": fio_json(),
}
"""Logs that are a pass, by format or variant of a format."""

FORMAT_OF = {"minigo": "mll06", "nccl_json": "nccl_tests", "dcgm_json": "dcgmi_diag"}
"""Format of the variants in :data:`PASSING`."""

END_OF_PROOF: dict[str, bytes] = {
    "mllog": b'"status": "success"}}',
    "mll06": b'"status": "success"}}',
    "minigo": b'"timestamp": 600.0}}',
    "mlp05": b'{"success": true}',
    "tf_cnn": b"total images/sec: 326.58\n",
    "mxnet": b"Validation-accuracy=0.983496\n",
    "nccl_tests": b"# Avg bus bandwidth    : 113.65\n",
    "nccl_json": b"}",
    "nvbandwidth": b"NOTE: The reported results",
    "gpu_burn": b"GPU 1: OK",
    "ib_write_bw": b"0.751895\n--------------------",
    "nvidia_smi_xml": b"</nvidia_smi_log>",
    "nvidia_smi_text": b"Processes                             : None\n",
    "dcgmi_diag": _DCGM_RULE.encode().rstrip(),
    "dcgm_json": b"}",
    "hpl": b"End of Tests.",
    "stream": b"Solution Validates",
    "fio": b"}",
}
"""The end of the proof in each of :data:`PASSING`: a log that is cut before it is not a pass.

Snapshots without an end marker (nvidia-smi's other tables) are not here.
"""


def proof_length(name: str) -> int:
    """Return how many bytes of a passing log are needed for the pass."""
    return PASSING[name].rindex(END_OF_PROOF[name]) + len(END_OF_PROOF[name])
