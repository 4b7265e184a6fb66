"""Test the verdict on lines of kernel logs (:mod:`rackproof.logs.kernel_events`).

The snapshots of nodes and ``rackproof parse`` search the kernel log for faults of GPUs, memory, PCIe,
network cards and disks. An *XID* is the number of an error of NVIDIA's driver, and an *SXid* that of an
NVSwitch. The tests check the code and verdict of each fault, in lines with the prefixes of many tools.
They also check that lines of healthy nodes give no finding, and that an unknown line of level error is
unproven (:mod:`rackproof.logs.known_kernel_lines`).
"""

from __future__ import annotations

import ast
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs.kernel_events import (
    FAULT_WORDS,
    read_kernel_line,
    read_unknown_line,
    requested_action,
)
from rackproof.logs.known_kernel_lines import HARMLESS_LINES, level_is_error, unknown_error

PASS, FAIL, DEGRADED, UNPROVEN = Verdict.PASS, Verdict.FAIL, Verdict.DEGRADED, Verdict.UNPROVEN

LINES = [
    # Failed transfers of a ConnectX: by RDMA, in its completion queue, and by Ethernet.
    ("infiniband mlx5_0: dump_cqe:277:(pid 12345): dump error cqe", UNPROVEN, "network_card_error"),
    ("mlx5_warn:mlx5_3:dump_cqe:257:(pid 0): dump error cqe", UNPROVEN, "network_card_error"),
    ("infiniband mlx5_0: mlx5_ib_handle_error_cqe: remote access", UNPROVEN, "network_card_error"),
    (
        "mlx5_core 0000:3b:00.0: mlx5_cq_err_event:222: CQ error on CQN 0x408, syndrome 0x1",
        UNPROVEN,
        "network_card_error",
    ),
    (
        "mlx5_core 0000:17:00.0 ens1: Error cqe on cqn 0x1a, ci 0x2, sqn 0x3, opcode 0xd, syndrome 0x2",
        UNPROVEN,
        "network_card_error",
    ),
    # Arrays that start without all their disks. The kernel's drivers/md reports them at level info.
    ("md/raid1:mdX: active with 1 out of 2 mirrors", DEGRADED, "storage_error"),
    ("md/raid10:md2: active with 3 out of 4 devices", DEGRADED, "storage_error"),
    ("md/raid:md127: raid level 5 active with 11 out of 12 devices, algorithm 2", DEGRADED, "storage_error"),
    # XIDs of a divided GPU (MIG) and of old drivers, with and without text.
    (
        "NVRM: Xid (PCI:0000:07:00 GPU-I:02): 94, pid=7194, Contained: SM (0x1). RST: No, D-RST: No",
        DEGRADED,
        "xid_94",
    ),
    ("NVRM: Xid (PCI:0000:41:00 GPU-I:05 GPU-CI:00): 79, GPU has fallen off the bus.", FAIL, "xid_79"),
    ("NVRM: Xid (0000:03:00): 48, A double bit error", FAIL, "xid_48"),
    ("NVRM: Xid (PCI:0000:18:00): 119", FAIL, "xid_119"),
    ("NVRM: Xid (PCI:0000:18:00): 62, 7db6 30aa1f 00000000", FAIL, "xid_62"),
    ("NVRM: Xid (PCI:0000:18:00): 8, Channel 00000022", FAIL, "xid_8"),
    ("NVRM: Xid (PCI:0000:18:00): 46, GPU stopped processing", FAIL, "xid_46"),
    ("NVRM: Xid (PCI:0000:18:00): 172, SRAM", FAIL, "xid_172"),
    ("NVRM: Xid (PCI:0000:18:00): 45, pid=1, Ch 00000008", DEGRADED, "xid_45"),
    ("NVRM: Xid (PCI:0000:18:00): 999, new in a driver to come", UNPROVEN, "xid_999"),
    (
        "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) "
        "to 0x1 (GPU Reset Required)",
        FAIL,
        "xid_154",
    ),
    (
        "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to "
        "0x2 (Node Reboot Required)",
        FAIL,
        "xid_154",
    ),
    (
        "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)",
        FAIL,
        "xid_154",
    ),
    (
        "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) "
        "to 0x0 (None)",
        DEGRADED,
        "xid_154",
    ),
    ("NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action chan", UNPROVEN, "xid_154"),
    # Damaged lines about XIDs and SXids.
    ("NVRM: Xid (PCI:0000:18:00): seventy-nine", UNPROVEN, "damaged_line"),
    ("NVRM: Xid (PCI:0000:18:", UNPROVEN, "damaged_line"),
    ("VRM: Xid: 79", UNPROVEN, "damaged_line"),
    ("NVRM: Xid (PCI:0000:18:00): 79999999", UNPROVEN, "damaged_line"),
    ("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): xyz, Fatal error", UNPROVEN, "damaged_line"),
    # SXids of NVSwitches.
    ("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up", FAIL, "sxid_20034"),
    ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20123, Unknown error", FAIL, "sxid_20123"),
    ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress", DEGRADED, "sxid_12028"),
    # GPUs that are lost or cannot be initialized, reported without an XID.
    ("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", FAIL, "gpu_lost"),
    ("NVRM: fallen off the bus and is not responding to commands.", FAIL, "gpu_lost"),
    ("NVRM: GPU 0000:b1:00.0: RmInitAdapter failed! (0x62:0x0:1860)", FAIL, "gpu_init_failed"),
    ("NVRM: rm_init_adapter failed, device minor number 3", FAIL, "gpu_init_failed"),
    # Processors and memory.
    (
        "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 4: be00000000800400",
        FAIL,
        "machine_check",
    ),
    ("Kernel panic - not syncing: Fatal machine check", FAIL, "machine_check"),
    ("{1}[Hardware Error]: event severity: fatal", FAIL, "machine_check"),
    ("{3}[Hardware Error]: event severity: recoverable", FAIL, "machine_check"),
    ("[Hardware Error]: Uncorrected, software restartable error.", FAIL, "machine_check"),
    (
        "[Hardware Error]: CPU:64 (19:1:1) MC17_STATUS[Over|UE|MiscV|AddrV|PCC|TCC|SyndV|UECC]: 0xbc",
        FAIL,
        "machine_check",
    ),
    ("[Hardware Error]: Corrected error, no action required.", DEGRADED, "machine_check"),
    ("{2}[Hardware Error]: event severity: corrected", DEGRADED, "machine_check"),
    ("EDAC MC1: 1 UE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0", FAIL, "memory_error"),
    ("EDAC MC0: 3 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0", DEGRADED, "memory_error"),
    ("Memory failure: 0x1c0de: recovery action for dirty LRU page: Recovered", FAIL, "memory_error"),
    # PCIe.
    (
        "pcieport 0000:00:1c.5: AER: Multiple Uncorrected (Fatal) error received: 0000:01:00.0",
        FAIL,
        "pcie_error",
    ),
    (
        "mlx5_core 0000:b1:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
        FAIL,
        "pcie_error",
    ),
    (
        "pcieport 0000:20:01.1: AER: Uncorrectable (Non-Fatal) error message received from 0000:21:00.0",
        UNPROVEN,
        "pcie_error",
    ),
    ("pcieport 0000:20:01.1: AER: device recovery failed", FAIL, "pcie_error"),
    ("pcieport 0000:00:1c.5: AER: Corrected error received: 0000:00:1c.5", DEGRADED, "pcie_error"),
    (
        "pcieport 0000:00:01.0: AER: Correctable error message received from 0000:01:00.0",
        DEGRADED,
        "pcie_error",
    ),
    ("nvme 0000:c4:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer", DEGRADED, "pcie_error"),
    ("pcieport 0000:00:01.0: DPC: containment event, status:0x1f01 source:0x0000", FAIL, "pcie_error"),
    ("pcieport 0000:64:01.0: pciehp: Slot(3): Link Down", UNPROVEN, "pcie_error"),
    # Errors of the GPUs' driver, reported without an XID.
    ("NVRM: _kgspLogXid119: ******** GSP Timeout ********", FAIL, "gpu_driver_error"),
    ("NVRM: nvAssertOkFailedNoLog: failed: GPU lost [NV_ERR_GPU_IS_LOST] (0x0F)", FAIL, "gpu_driver_error"),
    ("NVRM: API mismatch: the client has the version 580.1, but this kernel", FAIL, "gpu_driver_error"),
    ("nvidia: probe of 0000:00:09.0 failed with error -1", FAIL, "gpu_driver_error"),
    ("nvidia 0000:00:09.0: probe with driver nvidia failed with error -1", FAIL, "gpu_driver_error"),
    ("NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00", UNPROVEN, "gpu_driver_error"),
    ("NVRM: nvAssertFailedNoLog: Assertion failed: 0 @ kern_bus.c:123", DEGRADED, "gpu_driver_error"),
    # The discovery of NVLinks does not end (B200, GB300), and nvidia-smi hangs later. Other errors follow.
    (
        "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
        FAIL,
        "gpu_driver_error",
    ),
    (
        "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
        FAIL,
        "gpu_driver_error",
    ),
    (
        "NVRM: GPU6 kgmmuCheckMemSubsysError_IMPL: Memory Subsystem Error detected.",
        FAIL,
        "gpu_driver_error",
    ),
    ("NVRM: GPU0 _kgspRpcRecvPoll: GSP RM heartbeat timed out", UNPROVEN, "gpu_driver_error"),
    (
        "NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 812751949 heartbeat 1899482",
        UNPROVEN,
        "gpu_driver_error",
    ),
    (
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context",
        DEGRADED,
        "gpu_driver_error",
    ),
    (
        "nv_mem nv_get_p2p_free_callback:155 nv_get_p2p_free_callback -- invalid dma_mapping",
        DEGRADED,
        "gpu_driver_error",
    ),
    # Memory errors that the controller's driver decoded. Bit 61 of the status marks an uncorrected error.
    ("EDAC skx MC2: HANDLING MCE MEMORY ERROR", UNPROVEN, "memory_error"),
    ("EDAC skx MC2: CPU 10: Machine Check Event: 0 Bank 7: 9c00004001010090", DEGRADED, "memory_error"),
    ("EDAC skx MC3: CPU 0: Machine Check Event: 0x0 Bank 25: 0xac00000200a00090", FAIL, "memory_error"),
    # A hot-plug event in the form of kernels 4.x.
    ("pciehp 0000:64:01.0:pcie204: Slot(3): Link Down", UNPROVEN, "pcie_error"),
    # Programs that the node needs, and a processor that is too hot.
    (
        "nv-fabricmanage[104230]: segfault at 0 ip 00005 sp 00007 error 4 in nv-fabricmanager",
        UNPROVEN,
        "program_crashed",
    ),
    ("slurmd[901]: segfault at 18 ip 00007 sp 00007 error 4 in libslurmfull.so", DEGRADED, "program_crashed"),
    ("thermal thermal_zone0: critical temperature reached, shutting down", UNPROVEN, "cpu_throttled"),
    # Network cards.
    (
        "mlx5_core 0000:18:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",
        FAIL,
        "network_card_error",
    ),
    (
        "mlx5_core 0000:18:00.0: print_health_info:425: Health issue observed, severity(3) ERROR:",
        FAIL,
        "network_card_error",
    ),
    (
        "mlx5_core 0000:5c:00.0: probe_one:1484: mlx5_init_one failed with error code -110",
        FAIL,
        "network_card_error",
    ),
    (
        "mlx5_core 0000:18:00.0: wait_func:1152: timeout. Will cause a leak of a command resource",
        UNPROVEN,
        "network_card_error",
    ),
    ("mlx5_core 0000:18:00.0: temp_warn:140: High temperature on sensors", DEGRADED, "network_card_error"),
    (
        "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299: Detected insufficient power on the PCIe slot (27W).",
        DEGRADED,
        "network_card_error",
    ),
    # Disks and file systems, and GPUs that are bound to another driver.
    ("nvme nvme0: Device not ready; aborting reset, CSTS=0x1", FAIL, "storage_error"),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff", FAIL, "storage_error"),
    ("nvme nvme1: I/O 512 QID 1 timeout, aborting", DEGRADED, "storage_error"),
    ("megaraid_sas 0000:01:00.0: FW in FAULT state!!", FAIL, "storage_error"),
    ("megaraid_sas 0000:18:00.0: FW in FAULT state Fault code:0x10000", FAIL, "storage_error"),
    ("mpt3sas_cm0: fault_state(0x2810)!", FAIL, "storage_error"),
    (
        "EXT4-fs (nvme0n1p2): warning: mounting fs with errors, running e2fsck is recommended",
        DEGRADED,
        "storage_error",
    ),
    ("CIFS: VFS: \\\\\\\\srv has not responded in 180 seconds. Reconnecting...", DEGRADED, "storage_error"),
    ("NVRM: GPU 0000:18:00.0 is already bound to nouveau.", FAIL, "gpu_driver_error"),
    ("NVRM: GPU 0000:18:00.0 is already bound to vfio-pci.", FAIL, "gpu_driver_error"),
    (
        "blk_update_request: I/O error, dev nvme0n1, sector 12345 op 0x0:(READ) flags 0x0",
        FAIL,
        "storage_error",
    ),
    ("critical medium error, dev nvme0n1, sector 123 op 0x0:(READ)", FAIL, "storage_error"),
    ("Buffer I/O error on dev dm-0, logical block 0, lost sync page write", FAIL, "storage_error"),
    ("block nvme0n1: no available path - failing I/O", FAIL, "storage_error"),
    ("EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm ls", FAIL, "storage_error"),
    ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", FAIL, "storage_error"),
    ("EXT4-fs (dm-0): I/O error while writing superblock", FAIL, "storage_error"),
    (
        "XFS (nvme0n1p2): Corruption of in-memory data detected.  Shutting down filesystem",
        FAIL,
        "storage_error",
    ),
    ("XFS (md0): log I/O error -5", FAIL, "storage_error"),
    ("BTRFS error (device sda1): bdev /dev/sda1 errs: wr 0, rd 5", FAIL, "storage_error"),
    ("md/raid0:md0: Disk failure on nvme0n1p1 detected, failing array.", FAIL, "storage_error"),
    ("nfs: server store not responding, still trying", DEGRADED, "storage_error"),
    # Errors of the kernel itself, and shortages of memory or cooling.
    ("BUG: unable to handle page fault for address: ffffffffc0de0000", FAIL, "kernel_error"),
    ("Oops: 0000 [#1] SMP NOPTI", FAIL, "kernel_error"),
    ("Internal error: Oops: 0000000096000004 [#1] SMP", FAIL, "kernel_error"),
    ("Unable to handle kernel NULL pointer dereference at virtual address 0000", FAIL, "kernel_error"),
    ("kernel BUG at mm/slub.c:305!", FAIL, "kernel_error"),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 12", FAIL, "kernel_error"),
    ("general protection fault, probably for non-canonical address 0xdead: 0000 [#1]", FAIL, "kernel_error"),
    ("watchdog: BUG: soft lockup - CPU#17 stuck for 22s! [python:1234]", UNPROVEN, "kernel_error"),
    ("rcu: INFO: rcu_sched self-detected stall on CPU", UNPROVEN, "kernel_error"),
    ("INFO: task python:12345 blocked for more than 120 seconds.", DEGRADED, "task_hung"),
    ("Out of memory: Killed process 1234 (slurmd) total-vm:1kB", DEGRADED, "out_of_memory"),
    ("CPU12: Package temperature above threshold, cpu clock throttled", DEGRADED, "cpu_throttled"),
    (
        "CPU23: Core temperature is above threshold, cpu clock is throttled (total events = 1)",
        DEGRADED,
        "cpu_throttled",
    ),
]
"""Line, verdict and code of each fault. ``LINES +=`` below adds further ones."""
HARMLESS = [
    "pci 0000:1b:00.0: not ready 1023ms after FLR; waiting",
    "nvidia 0000:1b:00.0: not ready 32767ms after bus reset; waiting",
    "nvidia 0000:1b:00.0: ready 1023ms after FLR",
    "pcieport 0000:00:03.0: Refused to change power state from D0 to D3hot",
    "pci 0000:1b:00.0: PME# supported from D0 D3hot D3cold",
    "pci 0000:06:08.0: BAR 4: failed to assign [io  size 0x0020]",
    "Lustre: fs01-OST0003-osc-ffff: Connection restored to fs01-OST0003 (at 10.1.0.4@o2ib)",
    "megaraid_sas 0000:65:00.0: 8519 (779461331s/0x0001/INFO) - VD 00/0 is now OPTIMAL",
    "EDAC MC: Ver: 3.0.0",
    "EDAC MC0: Giving out device to module igen6_edac controller Intel_client_SoC MC#0",
    "EDAC i10nm: No hardware ECC memory",
    "RAS: Correctable Errors collector initialized.",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "MCE: In-kernel MCE decoding enabled.",
    "pcieport 0000:00:01.0: AER: enabled with IRQ 25",
    "acpi PNP0A08:00: _OSC: OS now controls [PCIeHotplug PME AER PCIeCapability LTR]",
    "HEST: Enabling Firmware First mode for corrected errors.",
    "GHES: APEI firmware first mode is enabled by APEI bit and WHEA _OSC.",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
    "NVRM: GPU at PCI:0000:18:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7",
    "nvidia-nvswitch0: using MSI",
    "nvidia 0000:18:00.0: enabling device (0000 -> 0002)",
    "NVRM: devidx 0 added to rm_gpu_list",
    "nvme nvme0: pci function 0000:01:00.0",
    "nvme nvme0: 48/0/0 default/read/poll queues",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode",
    "XFS (nvme1n1): Ending clean mount",
    "BTRFS info (device sda1): first mount of filesystem",
    "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ)",
    "Buffer I/O error on dev sr0, logical block 0, async page read",
    "mlx5_core 0000:18:00.0: firmware version: 28.39.1002",
    "mlx5_core 0000:18:00.0: Rate limit: 127 rates are supported, range: 0Mbps to 97656Mbps",
    "mlx5_core 0000:18:00.0: Port module event: module 0, Cable plugged",
    "traps: python[2212] general protection fault ip:7f1 sp:7ff error:0 in libc.so.6[7f1+195000]",
    "python[2213]: segfault at 0 ip 000055 sp 00007ffd error 4 in python3.11",
    "Memory cgroup out of memory: Killed process 19667 (python) total-vm:1460016kB",
    "rcu: Hierarchical RCU implementation.",
    "ACPI: AE_NOT_FOUND, While evaluating Sleep State [\\_S3_]",
    "pcieport 0000:00:01.0: pciehp: Slot #1 AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd-",
    "pcieport 0000:00:01.0: DPC: enabled with IRQ 25",
    "pcieport 0000:64:02.0: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+ SwTrigger+ "
    "RP PIO Log 4, DL_ActiveErr+",
    "Kernel command line: BOOT_IMAGE=/vmlinuz panic=10 oops=panic",
    "nvme0n1: detected capacity change from 0 to 7501476528",
    "loop0: detected capacity change from 8 to 0",
    "amdgpu 0000:c1:00.0: amdgpu: 0 new deferred hardware errors detected in umc block",
    "ata1: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
    "audit: disabled",
    "CPU3 BANK7 CMCI storm subsided",
    "Detected hardware: 8 GPUs",
    "Oops, it works",
]
"""Lines of healthy nodes that share words with faults."""
PREFIXES = ["", "[131453.740743] ", "1795000000.123456 n1 kernel: ", "Nov 23 03:14:07 gpu-17 kernel: [ 7.1] "]
"""Beginnings of lines: none, and those of dmesg, journalctl and syslog."""

# A comment names the tool or option that writes the prefix. The first three are from logs of leptonai/gpud
# (components/memory/testdata, pkg/kmsg/testdata) and rwth-i6/returnn issue 1500.
PREFIXES_OF_TOOLS = [
    "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ",  # dmesg --decode --time-format iso
    "6,3973,227986636,-;",  # /dev/kmsg
    "[  +0.000844] ",  # dmesg --human
    "2025-01-21T04:41:44,283302+00:00 ",  # dmesg --time-format iso
    "[Feb23 16:24] ",  # dmesg --human, the first line of a minute
    "[   12.345678 <    0.000844>] ",  # dmesg --show-delta
    "[Tue Sep  1 10:00:00 2026 <    0.000012>] ",  # dmesg --ctime --show-delta
    "kern  :warn  : [Tue Sep  1 10:00:00 2026 <    0.000012>] ",  # --decode
    "[<    0.000012>] ",  # dmesg --notime --show-delta
    "[   32.298491][  T896] ",  # CONFIG_PRINTK_CALLER, on Arm servers
    "[   32.298491] [    C3] ",
    "[   12.345678] n01 kernel: ",  # journalctl --output short-monotonic
    "Feb 14 05:03:41.123456 n01 kernel: ",  # short-precise
    "Fri 2025-02-14 05:03:41 UTC n01 kernel: ",  # short-full
    "2025-02-14T05:03:41.123456+00:00 n01 kernel: ",  # short-iso-precise, rsyslog
    "1739509421.123456 n01 kernel: ",  # short-unix
    "Feb 14 05:03:41 kernel: ",  # --no-hostname
]

# Devices that are dead or dying. The sources are named beside the rules in kernel_events.py.
LINES += [
    ("nvidia 0000:1b:00.0: not ready 65535ms after FLR; giving up", FAIL, "pcie_error"),
    ("nvidia 0000:1b:00.0: not ready 65535ms after bus reset; giving up", FAIL, "pcie_error"),
    ("vfio-pci 0000:1b:00.0: not ready 65535ms after pm_reset; giving up", FAIL, "pcie_error"),
    ("pcieport 0000:15:01.0: not ready 65535ms after resume; giving up", FAIL, "pcie_error"),
    ("ice 0000:31:00.0: not ready 60000ms after DPC; giving up", FAIL, "pcie_error"),
    ("nvidia 0000:1b:00.0: Refused to change power state, currently in D3", UNPROVEN, "pcie_error"),
    ("pcieport 0000:15:01.0: Refused to change power state, currently in D3", UNPROVEN, "pcie_error"),
    ("mlx5_core 0000:18:00.0: Refused to change power state from D3hot to D0", UNPROVEN, "pcie_error"),
    (
        "pcieport 0000:15:01.0: can't change power state from D3cold to D0 (config space inaccessible)",
        UNPROVEN,
        "pcie_error",
    ),
    (
        "pci 0000:1b:00.0: Unable to change power state from D3cold to D0, device inaccessible",
        UNPROVEN,
        "pcie_error",
    ),
    ("pci 0000:1b:00.0: unknown header type 7f, ignoring device", UNPROVEN, "pcie_error"),
    (
        "NVRM: A GPU crash dump has been created. If possible, please run",
        FAIL,
        "gpu_driver_error",
    ),
    (
        "NVRM: Attempting to remove device 0000:1b:00.0 with non-zero usage count!",
        UNPROVEN,
        "gpu_driver_error",
    ),
    ("NVRM: Attempting to remove minor device 0 with non-zero usage count!", UNPROVEN, "gpu_driver_error"),
    ("RAS: Soft-offlining pfn: 0x12345", DEGRADED, "memory_error"),
]

# Drivers before 530 wrote no colon: NVIDIA/open-gpu-kernel-modules issues 402, 116 and 120.
LINES += [
    ("NVRM nvAssertFailedNoLog: Assertion failed: 0 @ osapi.c:1688", DEGRADED, "gpu_driver_error"),
    (
        "NVRM nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0xF)",
        FAIL,
        "gpu_driver_error",
    ),
    (
        "NVRM _issueRpcAndWait: RPC failed with status 0x0000000f for fn 76!",
        UNPROVEN,
        "gpu_driver_error",
    ),
    # The IOMMU of Arm servers such as Grace: radxa-pkg/edk2-cix issue 13, and the kernel's drivers/iommu/arm.
    ("arm-smmu-v3 arm-smmu-v3.0.auto: event 0x10 received:", UNPROVEN, "pcie_error"),
    (
        "arm-smmu-v3 arm-smmu-v3.0.auto: event: F_TRANSLATION client: 0000:c1:00.0 sid: 0xc100 iova: 0x0",
        UNPROVEN,
        "pcie_error",
    ),
    (
        "arm-smmu 5000000.iommu: Unhandled context fault: fsr=0x402, iova=0xffffb000, fsynr=0x2",
        UNPROVEN,
        "pcie_error",
    ),
]

# Faults whose lines have a level below error, or whose words are not those of a failure. The sources are
# named beside the rules in kernel_events.py.
LINES += [
    ("invalid opcode: 0000 [#1] PREEMPT SMP NOPTI", FAIL, "kernel_error"),
    ("stack segment: 0000 [#1] PREEMPT SMP NOPTI", FAIL, "kernel_error"),
    ("Oops: divide error: 0000 [#3] SMP PTI", FAIL, "kernel_error"),
    ("Oops: Kernel access of bad area, sig: 11 [#1]", FAIL, "kernel_error"),
    ("traps: PANIC: double fault, error_code: 0x0", FAIL, "kernel_error"),
    ("BUG: TASK stack guard page was hit at 00000000f1a4 (stack is 0000..1111)", FAIL, "kernel_error"),
    ("CPU5: is stuck in kernel", FAIL, "kernel_error"),
    ("CPU16: died during early boot", FAIL, "kernel_error"),
    ("CPU4: failed to come online", FAIL, "kernel_error"),
    ("mce: CPUs not responding to MCE broadcast (may include false positives): 3", FAIL, "machine_check"),
    ("mce: CMCI storm detected: switching to poll mode", DEGRADED, "machine_check"),
    ("CPU3 BANK7 CMCI storm detected", DEGRADED, "machine_check"),
    ("e1000e 0000:00:1f.6 eno1: Detected Hardware Unit Hang:", UNPROVEN, "network_card_error"),
    ("ixgbe 0000:03:00.0 enp3s0: Detected Tx Unit Hang", UNPROVEN, "network_card_error"),
    ("ixgbe 0000:03:00.0: Adapter removed", UNPROVEN, "network_card_error"),
    ("sd 0:0:0:0: rejecting I/O to offline device", UNPROVEN, "storage_error"),
    ("sd 1:0:0:0: [sdb] rejecting I/O to dead device", UNPROVEN, "storage_error"),
    ("sd 0:0:0:0: Device offlined - not ready after error recovery", UNPROVEN, "storage_error"),
    ("ata1.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6 frozen", UNPROVEN, "storage_error"),
    ("ata1.00: disabled", UNPROVEN, "storage_error"),
    ("nvme0n1: detected capacity change from 7501476528 to 0", UNPROVEN, "storage_error"),
    ("mpt3sas_cm0: SAS host is non-operational !!!!", FAIL, "storage_error"),
    (
        "amdgpu 0000:c1:00.0: amdgpu: RAS records:130 exceed threshold:128, GPU will not be initialized.",
        FAIL,
        "gpu_driver_error",
    ),
    (
        "amdgpu 0000:c1:00.0: amdgpu: socket: 0, die: 0, 2 new deferred hardware errors detected in umc",
        UNPROVEN,
        "gpu_driver_error",
    ),
    (
        "NVRM: GPU3 kgspHealthCheck_TU102: ****** GSP-CrashCat Report *******",
        FAIL,
        "gpu_driver_error",
    ),
]

PREFIXES_OF_SYSLOG = [
    # The first three are RFC 5424, as rsyslog's RSYSLOG_SyslogProtocol23Format writes it. Some receivers
    # remove the level. The last is rsyslog's file format.
    "<4>1 2026-11-27T10:00:00.000000+00:00 n01 kernel - - - ",
    "1 2026-11-27T10:00:00Z n01 kernel - - - [   12.345678] ",
    '<4>1 2026-11-27T10:00:00.000000+00:00 n01.example.org kernel - - [meta sequenceId="7"] ',
    "2026-11-27T10:00:00+00:00 n01 kernel: ",
]
PREFIXES_OF_TOOLS += PREFIXES_OF_SYSLOG


def parsed(text: str) -> ParsedLog:
    return logs.parse(io.BytesIO(text.encode()), format="xid", name="dmesg")


@pytest.mark.parametrize(("line", "verdict", "name"), LINES)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_fault_has_its_code_and_verdict(prefix: str, line: str, verdict: Verdict, name: str) -> None:
    event = read_kernel_line(prefix + line)
    assert event is not None
    assert (event.name, event.verdict) == (name, verdict)


@pytest.mark.parametrize("line", HARMLESS)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_healthy_nodes_write_is_no_event(prefix: str, line: str) -> None:
    assert read_kernel_line(prefix + line) is None


@pytest.mark.parametrize(("line", "verdict", "name"), LINES)
def test_a_log_has_the_verdict_of_its_only_fault(line: str, verdict: Verdict, name: str) -> None:
    result = parsed(f"[    0.000000] Linux version 6.8\n[   12.5] {line}\n")
    assert result.verdict is verdict
    assert name in {finding.code for finding in result.findings}


@pytest.mark.parametrize("bad", [line for line, verdict, _ in LINES if verdict is FAIL and "Xid (" in line])
def test_a_failing_line_that_was_cut_off_never_passes(bad: str) -> None:
    for end in range(bad.index("Xid") + 3, len(bad) + 1):
        event = read_kernel_line(f"[ 1.0] {bad[:end]}")
        assert event is not None, bad[:end]
        assert event.verdict is not Verdict.PASS


@given(st.text(max_size=300), st.integers(0, 10**9))
def test_no_text_after_an_xid_hides_it(text: str, xid: int) -> None:
    line = f"NVRM: Xid (PCI:0000:18:00): {xid}, {text}".splitlines()[0]
    event = read_kernel_line(line)
    assert event is not None
    if event.kind == "xid":
        assert event.code == xid
        assert event.action == requested_action(xid, event.text)


REGISTERS = [
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 50 Sub-engine instance 00",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Data {0x00140004, 0x00100000}",
]
"""Lines with the registers of an SXid, which follow the line that reports it."""


def test_registers_of_an_sxid_have_the_verdict_of_their_line() -> None:
    head = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 50 egress (First)"
    result = parsed("\n".join(f"[ 1.{at}] {line}" for at, line in enumerate([head, *REGISTERS])) + "\n")
    assert result.verdict is DEGRADED
    assert [one.value for one in result.measurements if one.name == "sxid_count"] == [1.0]


def test_registers_without_the_line_of_their_sxid_are_unproven() -> None:
    assert parsed("".join(f"[ 1.0] {line}\n" for line in REGISTERS)).verdict is UNPROVEN


@pytest.mark.parametrize("rubbish", ["\x00\x01\x02" * 50, "hello\n", "<html></html>\n", "{}\n"])
def test_a_text_that_is_no_kernel_log_is_unproven(rubbish: str) -> None:
    assert parsed(rubbish).verdict is UNPROVEN


def test_the_module_on_the_node_has_the_same_fault_words(root: Path) -> None:
    source = (root / "plugins/module_utils/rackproof_facts_health.py").read_text()
    listed = source.split("FAULT_WORDS = ")[1].split("\n)")[0] + ")"
    assert ast.literal_eval(listed) == FAULT_WORDS


# Refused access to memory (IOMMU), PCIe links that are narrower or slower than their devices, and a driver
# that finds no GPU.
@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("DMAR: [DMA Write NO_PASID] Request device [3b:00.0] fault addr 0xdf000000", UNPROVEN),
        ("nvidia 0000:3b:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0010 address=0xf0]", UNPROVEN),
        ("mlx5_core 0000:43:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at "
         "0000:42:01.0 (capable of 126.016 Gb/s with 8.0 GT/s PCIe x16 link)", UNPROVEN),
        ("pci 0000:3b:00.0: 31.504 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PCIe x16 link at "
         "0000:3a:00.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)", UNPROVEN),
        ("NVRM: No NVIDIA GPU found.", FAIL),
    ],
)  # fmt: skip
def test_a_device_without_access_or_full_speed_has_its_verdict(line: str, verdict: Verdict) -> None:
    event = read_kernel_line(f"[   12.500000] {line}")
    assert event is not None
    assert event.verdict is verdict


def test_a_disk_in_a_slower_slot_is_no_finding() -> None:
    line = "nvme 0000:01:00.0: 63.012 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x4 link at "
    assert (
        read_kernel_line(f"[ 2.5] {line}0000:00:01.1 (capable of 126.024 Gb/s with 32.0 GT/s PCIe x4 link)")
        is None
    )


@pytest.mark.parametrize(
    "head",
    [
        "[    0.000000] Linux version 6.8.0-48-generic (buildd@lcy02-amd64-010)\n",
        "Nov 25 02:00:01 n01 kernel: Linux version 6.8.0-48-generic (buildd@lcy02-amd64-010)\n",
        "<6>[    5.429675] nvidia-nvlink: Nvlink Core is being initialized\n" * 3,
        "kern  :info  : [    5.429675] nvidia-nvlink: Nvlink Core is being initialized\n" * 3,
        "[Wed Dec  9 13:04:05 2026] Linux version 6.8.0-48-generic (buildd@lcy02-amd64-010)\n",
        "[Wed Dec  9 13:04:05 2026] [drm] Initialized nvidia-drm 0.0.0 for 0000:01:00.0 on minor 1\n" * 3,
    ],
)
def test_a_kernel_log_without_a_fault_is_recognized_and_passes(head: str) -> None:
    quiet = "[   60.000000] IPv6: ADDRCONF(NETDEV_CHANGE): ib0: link becomes ready\n"
    result = logs.parse(io.BytesIO((head + quiet).encode()))
    assert (result.format, result.verdict) == ("xid", PASS)


@pytest.mark.parametrize("line", ["[error] [client 10.0.0.1] File does not exist: /x", "epoch 1 loss 0.1"])
def test_a_program_log_with_dates_is_not_taken_for_a_kernel_log(line: str) -> None:
    assert logs.detect(f"[Wed Dec  9 13:04:05 2026] {line}\n".encode() * 3) is None


@pytest.mark.parametrize("prefix", PREFIXES_OF_SYSLOG[:3])
def test_messages_of_programs_in_a_syslog_are_no_faults_of_the_node(prefix: str) -> None:
    text = f"{prefix}Linux version 6.8\n{prefix}NVRM: loaded\n"
    for line in (
        "<27>1 2026-11-27T10:00:01Z n01 sshd 812 - - error: maximum",
        "1 2026-11-27T10:00:01Z n01 x - - -",
    ):
        result = logs.parse(io.BytesIO(f"{text}{line} authentication attempts exceeded\n".encode()))
        assert (result.format, result.verdict) == ("xid", PASS)
        assert [(one.code, one.verdict) for one in result.findings] == [("other_programs", None)]
    # The level of a message of the kernel itself counts.
    level = "<3>1 2026-11-27T10:00:01Z n01 kernel - - - i801_smbus 0000:00:1f.4: SMBus is busy, can't use it!"
    assert logs.parse(io.BytesIO(f"{text}{level}\n".encode())).verdict is UNPROVEN


@pytest.mark.parametrize(
    "prefix",
    [*PREFIXES_OF_SYSLOG, "[Tue Sep  1 10:00:00 2026 <    0.000012>] ", "[Tue Sep  1 10:00:00 2026] "],
)
@pytest.mark.parametrize("label", ["", "n01: ", "gpu-17.example.org: "])
def test_the_time_of_the_last_line_is_read(label: str, prefix: str) -> None:
    day = "2026-09-01" if "Sep" in prefix else "2026-11-27"
    result = logs.parse(io.BytesIO(f"{label}{prefix}Linux version 6.8\n".encode() * 2))
    assert result.tags["ended"] == f"{day}T10:00:00+00:00"


# Lines that no rule knows.

UNKNOWN = [
    # Lines of the drivers of the node's hardware. Their words count at every level.
    "NVRM: GPU6 _threadNodeCheckTimeout: _threadNodeCheckTimeout: Timeout was set to: 4000 msecs!",
    "NVRM: GPU6 kbusSendSysmembarSingle_GH100: - timeout error waiting for startToken = 0x3 cnt=24105122",
    "NVRM: kfspPollForResponse_IMPL: FSP command timed out",
    "NVRM: knvlinkSendInbandData_IMPL: Failed to send inband data: 0",
    "NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
    "nvidia-nvswitch: Probing device 0000:02:00.0 failed",
    "[drm:nv_drm_load [nvidia_drm]] *ERROR* [GPU ID 0x00000500] Failed to allocate NvKmsKapiDevice",
    "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838: CREATE_MKEY(0x200) failed, status bad resource",
    "nvme nvme1: rdma connection establishment failed (-22)",
    "nvme nvme0: I/O Cmd(0x2) @ LBA 123, 8 blocks, I/O Error (sct 0x2 / sc 0x81)",
]
OF_LEVEL_ERROR = [
    # Other lines, which are unproven if their level is error, whatever their words are.
    "i801_smbus 0000:00:1f.4: SMBus is busy, can't use it!",
    "usb 1-14.1: device descriptor read/64, error -71",
    "DMAR: DRHD: handling fault status reg 2",
    "Under-voltage detected! (0x00050005)",
]


@pytest.mark.parametrize("line", UNKNOWN)
@pytest.mark.parametrize("level", [None, False, True])
@pytest.mark.parametrize("prefix", PREFIXES[:3])
def test_an_error_of_a_hardware_driver_is_unproven_or_fails(
    prefix: str, level: bool | None, line: str
) -> None:
    event = read_kernel_line(prefix + line) or read_unknown_line(prefix + line, level)
    assert event is not None
    assert event.verdict in (UNPROVEN, FAIL)
    assert line[:40] in event.text


@pytest.mark.parametrize("line", OF_LEVEL_ERROR)
def test_a_line_of_level_error_that_no_rule_knows_is_unproven(line: str) -> None:
    event = read_unknown_line(f"[ 12.5] {line}", level_is_error=True)
    assert event is not None
    assert (event.name, event.verdict, event.text) == ("unknown_kernel_error", UNPROVEN, line)
    assert read_unknown_line(f"[ 12.5] {line}", level_is_error=False) is None


# Lines of healthy nodes that are harmless at every level. Their sources are in known_kernel_lines.py.
HARMLESS_OF_LEVEL_ERROR = [
    "ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PCI0], AE_NOT_FOUND (20230628/dswload2-162)",
    "ACPI Error: AE_NOT_FOUND, During name lookup/catalog (20230628/psobject-220)",
    "ACPI Error: Aborting method \\_SB.PC00.PEG0.PCRP._ON due to previous error (AE_NOT_FOUND)",
    "ACPI Error: No handler for Region [POWR] (00000000978931e9) [IPMI] (20190816/evregion-129)",
    "ACPI Error: Region IPMI (ID=7) has no handler (20190816/exfldio-261)",
    "No Local Variables are initialized for Method [_PMM]",
    "ACPI: \\_SB_.PMI0: _PMC evaluation failed: AE_NOT_EXIST",
    "platform regulatory.0: Direct firmware load for regulatory.db failed with error -2",
    "faux_driver regulatory: Direct firmware load for regulatory.db failed with error -2",
    "platform regulatory.0: firmware: failed to load regulatory.db (-2)",
    "cfg80211: failed to load regulatory.db",
    "FAT-fs (nvme0n1p1): Volume was not properly unmounted. Some data may be corrupt. Please run fsck.",
    "",
    "ACPI: [Firmware Bug]: BIOS _OSI(Linux) query ignored",
    "[Firmware Bug]: the BIOS has corrupted hw-PMU resources (MSR 38d is b0)",
    "APEI: Can not request [mem 0xbf77a9f0-0xbf77aa43] for APEI BERT registers",
    "acpi PNP0A03:00: fail to add MMCONFIG information, can't access extended PCI configuration space",
    "mce: Unable to init MCE device (rc: -5)",
    "x86/cpu: SGX disabled by BIOS.",
    "x86/cpu: SGX disabled or unsupported by BIOS.",
    "ACPI: SPCR: Unexpected SPCR Access Width.  Defaulting to byte size",
    "power_meter ACPI000D:00: Ignoring unsafe software power cap!",
    "pci 0000:00:00.2: AMD-Vi: Unable to read/write to IOMMU perf counter.",
    "AMD-Vi: Unable to write to IOMMU perf counter.",
    "kvm: disabled by bios",
    "kvm: support for 'kvm_intel' disabled by bios",
    "tpm_tis MSFT0101:00: IRQ index 0 not found",
    "arm-smmu-v3-pmcg arm-smmu-v3-pmcg.8.auto: IRQ index 0 not found",
    "tegra-qspi NVDA1513:00: cannot use DMA: -19",
    "tegra-qspi NVDA1513:00: device reset failed",
    "pcieport 0000:64:02.0: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+ SwTrigger+ "
    "RP PIO Log 4, DL_ActiveErr+",
    "pcieport 0000:00:06.0: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+",
    "ses 6:0:0:1: Wrong diagnostic page; asked for 1 got 8",
    "ses 6:0:0:1: Failed to get diagnostic page 0x1",
    "ses 6:0:0:1: Failed to bind enclosure -19",
    "integrity: Problem loading X.509 certificate -65",
    "Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on, data leaks possible via",
    "RETBleed: WARNING: Spectre v2 mitigation leaves CPU vulnerable to RETBleed attacks",
    "i8042: Can't read CTR while initializing i8042",
    "i8042 i8042: probe with driver i8042 failed with error -5",
    "nvidia 0000:02:00.0: [drm] Cannot find any crtc or sizes",
    "nvme c4c2:00:00.0: can't derive routing for PCI INT A",
    "pcieport 0000:00:17.0: can't derive routing for PCI INT A",
    "sd 0:0:0:0: [sda] Assuming drive cache: write through",
    "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0",
    "xhci-pci-renesas 0000:41:00.0: failed to load firmware renesas_usb_fw.mem, fallback to ROM",
    "watchdog: watchdog0: watchdog did not stop!",
    "-- No entries --",
    "[  29144]     0 29144      732       31        0       31    45056        0             0 timeout",
    "-- Reboot --",
    "-- Boot 2f1c0d3e4b5a69788796a5b4c3d2e1f0 --",
    "-- Journal begins at Tue 2026-11-24 09:00:00 UTC, ends at Wed 2026-11-25 02:00:00 UTC. --",
    "NVRM objClInitPcieChipset: *** Chipset Setup Function Error!",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024",
    "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
    "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, "
    "status bad operation(0x2), syndrome (0x9a6171), err(-22)",
    "mlx5_core 36fd:00:02.0: Successfully registered panic handler for port 1",
    "mlx5_core 36fd:00:02.0: Successfully unregistered panic handler for port 1",
    "nvidia-gpu 0000:01:00.3: i2c timeout error e0000000",
    "ucsi_ccg 1-0008: i2c_transfer failed -110",
    "ucsi_ccg 1-0008: ucsi_ccg_init failed - -110",
    "nvme nvme0: Shutdown timeout set to 10 seconds",
    "Memory cgroup out of memory: Killed process 15617 (python3) total-vm:11892kB, anon-rss:4292kB",
    "      Not tainted 7.0.0-rc1-00007-g2a93f5747d0e #1",
    '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
    "pcieport 0000:00:00.0:   device [8086:2030] error status/mask=000000c0/00002000",
    "pcieport 0000:00:00.0:    [ 6] Bad TLP",
    "pcieport 0000:00:02.0: broadcast error_detected message",
    "ath10k_pci 0000:07:00.0: AER:   Error of this Agent is reported first",
    "pcieport 0000:00:02.0: AER:   Error of this Agent(0010) is reported first",
    "pcieport 0000:80:1b.4: AER:   TLP Header: 0x34000000 0x00000052 0x00000000 0x00000000",
    "blacklist: Problem blacklisting hash (-13)",
    "Couldn't get size: 0x800000000000000e",
    "MODSIGN: Couldn't get UEFI db list",
    "Initramfs unpacking failed: Decoding failed",
    "PCI: Fatal: No config space access function found",
    "piix4_smbus 0000:00:01.3: SMBus Host Controller not enabled!",
    "Error: Driver 'pcspkr' is already registered, aborting...",
    "EDAC amd64: Error: F0 not found, device 0x1650 (broken BIOS?)",
    "hpet_acpi_add: no address or irqs in _CRS",
    "check: Scanning 1 areas for low memory corruption",
    "Scanning for low memory corruption every 60 seconds",
    "ERST: Failed to get Error Log Address Range.",
    "BERT: Boot Error Record Table support is disabled. Enable it by using bert_enable as kernel parameter.",
    "ACPI: _OSC evaluation for CPUs failed, trying _PDC",
    "Intel machine check architecture supported.",
    "Intel machine check reporting enabled on CPU#0.",
    "pci 0000:0b:00.0: BAR 13: failed to assign [io  size 0x1000]",
    "pci 0000:e1:00.0: DOE: [2c8] ABORT timed out",
    "ACPI Error: No handler for Region [SYSI] (00000000e3b0c442) [IPMI] (20230331/evregion-130)",
    "pci 0000:e1:00.0: DOE: [2c8] failed to create mailbox: -5",
    "ACPI: \\: failed to evaluate _DSM (0x1001)",
    "[Firmware Warn]: GHES: Poll interval is 0 for generic hardware error source: 1, disabled.",
    "ipmi_si IPI0001:00: Error clearing flags: cc",
]
# Lines of healthy nodes below level error. Most have words of an error, or are of drivers that report errors.
HEALTHY_BOOT = [
    "acpi PNP0A08:00: _OSC: platform retains control of PCIe features (AE_NOT_FOUND)",
    "NVRM: gpuClearFbhubPoisonIntrForBug2924523_GA100: FBHUB Interrupt detected. Clearing it.",
    "NVRM: Persistence mode is deprecated and will be removed in a future release.",
    "NVRM: kgspCheckGspRmCcCleanup_GH100: CC secret cleanup successful!",
    "ACPI Warning: \\_SB.PCI0.S60.S00._DSM: Argument #4 type mismatch - Found [Buffer]",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 240",
    "nvidia 0000:02:00.0: [drm] No compatible format found",
    "NVRM cpuidInfoAMD: Unrecognized AMD processor in cpuidInfoAMD",
    "arm-smmu-v3 arm-smmu-v3.0.auto: option mask 0x0",
    "arm-smmu-v3 arm-smmu-v3.0.auto: ias 48-bit, oas 48-bit (features 0x001e1fbf)",
    "arm-smmu-v3 arm-smmu-v3.0.auto: allocated 65536 entries for evtq",
    "md/raid1:md0: active with 2 out of 2 mirrors",
    "md/raid10:md2: active with 4 out of 4 devices",
    "md/raid:md127: raid level 5 active with 12 out of 12 devices, algorithm 2",
    "mlx5_core 0000:5e:00.0 enp94s0f0np0: Link up",
    "systemd[1]: Failed to find module 'autofs4'",
    "python[2213]: segfault at 0 ip 000055 sp 00007ffd error 4 in python3.11",
]


@pytest.mark.parametrize("line", HARMLESS_OF_LEVEL_ERROR)
@pytest.mark.parametrize("level", [None, False, True])
@pytest.mark.parametrize("prefix", PREFIXES[:3])
def test_a_harmless_line_is_no_finding_at_any_level(prefix: str, level: bool | None, line: str) -> None:
    assert read_kernel_line(prefix + line) is None
    assert read_unknown_line(prefix + line, level) is None


@pytest.mark.parametrize("line", [*HEALTHY_BOOT, *HARMLESS])
@pytest.mark.parametrize("level", [None, False])
def test_a_healthy_boot_below_level_error_is_no_finding(level: bool | None, line: str) -> None:
    assert read_unknown_line(f"[ 12.5] {line}", level) is None


QUIET = [
    "Linux version 6.8.0-48-generic (buildd@lcy02-amd64-010)",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 240",
    "ACPI Error: AE_NOT_FOUND, During name lookup/catalog (20230628/psobject-220)",
    "nvme nvme0: missing or invalid SUBNQN field.",
    "pt_main_thread[2536443]: segfault at 7f79 ip 00007f7c sp 00007f7c error 4 in libnccl.so.2[7f7c]",
    "mlx5_core 0000:41:00.0 ibp65s0: Link up",
]
"""Lines of a healthy node."""


@pytest.mark.parametrize("label", ["n01: ", "gpu-17.example.org: "])
@pytest.mark.parametrize("prefix", [*PREFIXES[1:], *PREFIXES_OF_TOOLS, "[Tue Sep  1 10:00:00 2026] "])
def test_the_label_of_pdsh_does_not_change_the_result(prefix: str, label: str) -> None:
    def read(lines: list[str], label: str) -> tuple[str, Verdict, set[tuple[str, int | None]]]:
        text = "".join(f"{label}{prefix}{line}\n" for line in lines)
        result = logs.parse(io.BytesIO(text.encode()))
        return result.format, result.verdict, {(one.code, one.source.line) for one in result.findings}

    assert read(QUIET, label) == ("xid", PASS, set())
    assert read(QUIET[1:], label) == ("xid", PASS, set())
    faults = [*UNKNOWN, *(line for line, _, _ in LINES)]
    # All faults in one log take a twentieth of the time. One prefix shows that each is also found alone.
    logs_of_faults = [[line] for line in faults] if prefix == PREFIXES[1] else [faults]
    for lines in logs_of_faults:
        assert read([*QUIET, *lines], label) == read([*QUIET, *lines], "")


def test_a_fault_after_the_label_of_pdsh_shows_its_host() -> None:
    text = "".join(f"n0{n}: [   12.3] NVRM: Xid (PCI:0000:18:00): 79, pid=1, lost\n" for n in (1, 2))
    assert {one.excerpt[:4] for one in parsed(text).findings if one.code == "xid_79"} == {"n01:", "n02:"}


@pytest.mark.parametrize("prefix", PREFIXES_OF_TOOLS)
def test_a_quiet_log_passes_in_the_form_of_each_tool(prefix: str) -> None:
    for lines in (QUIET, QUIET[1:]):
        text = "".join(f"{prefix}{line}\n" for line in lines)
        result = logs.parse(io.BytesIO(text.encode()))
        assert (result.format, result.verdict, result.findings) == ("xid", PASS, ())


@pytest.mark.parametrize("prefix", PREFIXES_OF_TOOLS)
def test_faults_and_unknown_errors_are_found_in_the_form_of_each_tool(prefix: str) -> None:
    for line, verdict, name in LINES:
        event = read_kernel_line(prefix + line)
        assert event is not None
        assert (event.name, event.verdict) == (name, verdict)
    for line in UNKNOWN:
        text = "".join(f"{prefix}{one}\n" for one in [*QUIET, line])
        assert logs.parse(io.BytesIO(text.encode())).verdict in (UNPROVEN, FAIL)
        event = read_kernel_line(prefix + line) or read_unknown_line(prefix + line, None)
        assert event is not None
        assert event.kind != "unknown_kernel_error" or event.text == line


@pytest.mark.parametrize(
    ("level", "is_error"),
    [("3,", True), ("6,", False), ("2,", True), ("30,", False), ("27,", True), ("4,", False)],
)
def test_the_level_of_a_line_of_dev_kmsg_counts(level: str, is_error: bool) -> None:
    line = f"{level}3973,227986636,-;i801_smbus 0000:00:1f.4: SMBus is busy, can't use it!"
    assert level_is_error(line) is is_error
    assert (parsed(line + "\n").verdict is UNPROVEN) is is_error


def test_each_harmless_line_has_a_source_and_an_example() -> None:
    for pattern, source in HARMLESS_LINES:
        assert len(source) > 10, pattern
        assert any(re.search(pattern, line) for line in HARMLESS_OF_LEVEL_ERROR), pattern


@given(st.text(max_size=300))
def test_unknown_error_accepts_any_text(text: str) -> None:
    for level in (None, False, True):
        unknown_error(text, level)


@pytest.mark.parametrize(
    "line",
    [
        "systemd-journald[500]: Missed 12 kernel messages",
        "systemd-journald[1]: Missed 1 kernel messages",
        "systemd-journald[388]: /dev/kmsg buffer overrun, some messages lost.",
    ],
)
def test_a_log_with_lost_lines_is_unproven(line: str) -> None:
    whole = "[    0.000000] Linux version 6.8.0\n[    1.000000] pci 0000:18:00.0: enabled\n"
    assert logs.parse(io.BytesIO(whole.encode()), format="xid").verdict is PASS
    result = logs.parse(io.BytesIO(f"{whole}[    2.000000] {line}\n".encode()), format="xid")
    assert (result.verdict, result.findings[0].code) == (UNPROVEN, "kernel_log_unknown")


def test_an_sxid_of_another_switch_or_host_does_not_judge_registers() -> None:
    bus = "nvidia-nvswitch{0}: SXid (PCI:0000:c{0}:00.0): 12028, {1}"
    head, registers = bus.format(1, "Non-fatal, Link 50 egress (First)"), bus.format(2, "Data {0x00140004}")
    own = bus.format(1, "Data {0x00140004}")
    for lines in ([head, registers], [registers, head], [head, own, registers]):
        result = parsed("".join(f"[ 1.0] {line}\n" for line in lines))
        assert result.verdict is UNPROVEN
        assert "0000:c2:00.0: the log has only its registers" in " ".join(
            one.message for one in result.findings
        )
    assert parsed(f"n01: [ 1.0] {head}\nn02: [ 1.0] {own}\n").verdict is UNPROVEN
    assert parsed(f"n01: [ 1.0] {head}\nn01: [ 1.0] {own}\n").verdict is DEGRADED


def test_registers_of_more_switches_than_are_stored_are_unproven() -> None:
    line = "[ 1.0] nvidia-nvswitch0: SXid (PCI:{:04x}:c1:00.0): 12028, {}\n"
    for switches, verdict in ((1000, DEGRADED), (1001, UNPROVEN)):
        registers = "".join(line.format(at, "Data {0x00140004}") for at in range(switches))
        heads = "".join(line.format(at, "Non-fatal, Link 50 egress (First)") for at in range(switches))
        assert parsed(registers + heads).verdict is verdict


STAMPS = (
    "",
    "Nov 27 13:00:01 n01 kernel: ",
    "2026-11-27T13:00:01.123456+01:00 n01 kernel: ",
    "[Fri Nov 27 13:00:01 2026] ",
    "13:00:01.1 kernel: ",
    "[  412.118] ",
)


@pytest.mark.parametrize("stamp", STAMPS)
@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("mlx5_core 0000:c8:00.0: health compromised - reached miss count", "0000:c8:00.0"),
        ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:00:01.0", "0000:00:01.0"),
        ("nvidia 0001:01:00.0: probe with driver nvidia failed with error -1", "0001:01:00.0"),
        ("pcieport 00:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer", "00:01.0"),
        ("NVRM: GPU at PCI:0000:65:00: GPU has fallen off the bus", "0000:65:00"),
        ("AER: device recovery failed", ""),
    ],
)
def test_a_time_is_not_taken_for_a_bus_address(stamp: str, line: str, address: str) -> None:
    event = read_kernel_line(stamp + line)
    assert event is not None
    assert event.bus_id == address
