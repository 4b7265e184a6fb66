"""Test the texts of faults (:mod:`rackproof.logs.fault_texts`) in a small log of every format.

``rackproof parse`` and the scores search every log for such texts of CUDA, NCCL, Slurm, MPI, file systems and
other programs. These tests insert each line of a table into passing logs. They check that the verdict becomes
at least as bad as the rule requires, and that harmless lines with the same words change nothing.
"""

from __future__ import annotations

import io
import random
import re

import pytest

from rackproof import logs
from rackproof.analysis.mlperf.worker import findings_of_log
from rackproof.core.line_rules import LineRules
from rackproof.core.records import Finding, ParsedLog, Verdict, worst
from rackproof.logs import fault_texts
from rackproof.logs.fault_texts import FAULT_TEXTS, HARMLESS_TEXTS, MEANING, OF_THE_MACHINE
from tests.logs import log_samples as samples
from tests.logs.test_kernel_events import LINES as KERNEL_LINES
from tests.logs.test_kernel_events import PREFIXES_OF_TOOLS

FAULTS = """
kernel_fault_mild | [12.3] mce: [Hardware Error]: Machine check events logged
kernel_fault | [Hardware Error]: event severity: fatal
kernel_fault | n1 kernel: {1}[Hardware Error]: event, severity: recoverable
kernel_fault_mild | EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0
kernel_fault | EDAC MC1: 1 UE memory scrubbing error on CPU_SrcID#1_MC#1_Chan#1_DIMM#0
kernel_fault | pcieport 0000:16:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=x
kernel_fault | mlx5_core 0000:3b:00.0: health compromised - reached miss count
kernel_fault | EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm bash: reading
kernel_fault | blk_update_request: I/O error, dev nvme0n1, sector 7814037
kernel_fault | nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
kernel_fault | amdgpu 0000:83:00.0: amdgpu: GPU fault detected: 147 0x0a284802
kernel_fault | [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=9
kernel_fault | amdgpu 0000:c1:00.0: amdgpu: 3 uncorrectable hardware errors detected in umc block
kernel_fault | Kernel panic - not syncing: Fatal exception
gpu_error | Memory access fault by GPU node-4 (Agent handle: 0x152e220) on address (nil).
gpu_error | HW Exception by GPU node-1 (Agent handle: 0x5) reason :GPU Hang
gpu_error | HW Exception by GPU node-4 (Agent handle: 0x55) reason :Unknown
gpu_error | HW Exception by GPU node-2 (Agent handle: 0x55dd) reason :HWS Hang
gpu_error | CUDA RUNTIME ERROR: 700
gpu_error | CUDA DRIVER ERROR: 700
gpu_error | CUDA KERNEL ERROR: an illegal address
gpu_error | CUDA LAUNCH ERROR: 719
gpu_error | DRIVER API ERROR = 0719 from file <p2p.cu>, line 5.
gpu_error | cublas ERROR: 13
gpu_error | CUBLAS ERROR: 13
gpu_error | cublasLt ERROR: 14
gpu_error_unclear | CUDNN ERROR: 4
gpu_error_unclear | cufft Error: 5
gpu_error_unclear | NCCL test: CUSPARSE ERROR: 6
network_failed | psm3_ep_connect() failed with error 5
network_failed | n4: psm2_ep_open: failed with error: no device
network_failed | PSM2_EP_CONNECT returned with error 9
gpu_error | RuntimeError: HIP error: an illegal memory access was encountered
gpu_error | hipErrorLaunchFailure: unspecified launch failure
gpu_error | "error: 'hipErrorIllegalAddress'(700) at x.cpp:1" hipErrorIllegalAddress
gpu_error_unclear | what(): hipErrorInvalidValue
gpu_error | what(): hipErrorUnknown
gpu_error | :0:rocdevice.cpp: Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION
gpu_error | RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR
gpu_error | E cuda_dnn.cc:329] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR
gpu_error | cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDART
gpu_error_unclear | E cuda_dnn.cc:329] Could not create cudnn handle: CUDNN_STATUS_NOT_INITIALIZED
gpu_error_unclear | failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED
gpu_error | failed to run cuBLAS routine: CUBLAS_STATUS_INTERNAL_ERROR
gpu_error | cuFFT error: CUFFT_INTERNAL_ERROR
gpu_error | cuFFT failed with error: CUFFT_EXEC_FAILED
gpu_error | cusolver error: CUSOLVER_STATUS_EXECUTION_FAILED, when calling `x`
gpu_error | E cuda_event.cc:29] Error polling for event status: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal
gpu_error | what(): parallel_for failed: cudaErrorLaunchFailure: unspecified launch failure
gpu_error | could not synchronize on CUDA context: CUDA_ERROR_ECC_UNCORRECTABLE
gpu_error | ncclUnhandledCudaError: Call to CUDA function failed.
gpu_error | RuntimeError: CUDA driver error: unknown error
gpu_error | CUDA failure 719: unspecified launch failure
gpu_error | CUDA failure at matmul.cu:42: an illegal memory access was encountered
gpu_error | node7: Test CUDA failure common.cu:1020 'unspecified launch failure'
gpu_error_unclear | Failed to initialize NVML: Driver/library version mismatch
gpu_error_unclear | NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.
gpu_error_unclear | No devices were found
gpu_error_unclear | WARNING: infoROM is corrupted at gpu 0000:3B:00.0
nccl_failed |  .. node7 pid 4711: Test failure common.cu:1067
network_failed |  Completion with error at client
task_failed | Command exited with non-zero status 1
task_failed | Command terminated by signal 9
task_failed | + ret_code=139
task_failed | ++ ret_code=1
task_failed | 0: + ret_code=134
task_failed | + exit_code=137
gpu_error | RuntimeError: CUDA driver error: an illegal memory access was encountered
out_of_memory | hipErrorOutOfMemory
out_of_memory | slurmstepd: error: Step 174.0 exceeded memory limit (4294968 > 4194304), being killed
out_of_memory | slurmstepd: error: Exceeded job memory limit
memory_limit_reached | slurmstepd: error: Exceeded job memory limit at some point.
memory_limit_reached | slurmstepd: error: Exceeded step memory limit at some point.
nccl_failed | ncclSystemError: System call (e.g. socket, malloc) or external library call failed
nccl_failed | [rank3]: DistBackendError: NCCL communicator was aborted on rank 3. Original reason: x
nccl_failed | ncclInternalError: Internal check failed.
gpu_error_unclear | jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to launch CUDA kernel
kernel_fault_mild | [ 5267.1] INFO: task python3:11219 blocked for more than 120 seconds.
nccl_failed | ncclRemoteError: A call failed possibly due to a network error or a remote process exiting
nccl_failed | [rank3]: torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:27, x
network_failed | mlx5: n1: got completion with error:
network_failed | UCX  ERROR Transport retry count exceeded on mlx5_0:1/IB: transport retry count exceeded
job_aborted | MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD
job_aborted | application called MPI_Abort(MPI_COMM_WORLD, 1) - process 0
job_aborted | torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
pmix_error | [n1:4711] PMIX ERROR: UNREACHABLE in file client/pmix_client.c at line 1111
pmix_error | [n2:17] PMIX ERROR: LOST-CONNECTION in file ptl_base_sendrecv.c at line 90
pmix_error | 0: [n3:9] PMIX ERROR: OUT-OF-RESOURCE in file base/bfrop_base_unpack.c at line 750
launcher_lost_node | ORTE has lost communication with a remote daemon.
launcher_lost_node | PRTE has lost communication with a remote daemon.
launcher_lost_node | ORTE has lost communication with its daemon located on node:
task_failed | E0101 00:00:00.1 9 torch/distributed/elastic/api.py:826] failed (exitcode: 1) local_rank: 0
task_failed | ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 3
task_failed | srun: error: Timed out waiting for job step to complete
task_failed | mpirun has exited due to process rank 3 with PID 17 on node n1 exiting improperly.
task_failed | prterun has exited due to process rank number 3 with PID 17 on node n1 exiting improperly.
task_failed |   exitcode  : 1 (pid: 4711)
task_failed | Primary job  terminated normally, but 1 process returned a non-zero exit code.
task_failed | =   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
collective_timeout | [E ProcessGroupNCCL.cpp:616] To avoid data, we are taking the entire process down.
collective_timeout | ProcessGroupNCCL.cpp:1785] Terminating the process after attempting to dump debug
collective_timeout | [Rank 0] Process group watchdog thread terminated with exception: x
collective_timeout | ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress
collective_timeout | Some NCCL operations have failed or timed out. Due to x
io_error | OSError: [Errno 5] Input/output error: '/data/train.bin'
io_error | cp: error reading '/data/a': Input/output error
io_error | OSError: [Errno 121] Remote I/O error
io_error | ls: cannot access '/scratch': Structure needs cleaning
disk_full | OSError: [Errno 28] No space left on device
io_unclear | OSError: [Errno 116] Stale file handle: '/mnt/nfs/x'
io_unclear | cat: /mnt/nfs/x: Stale NFS file handle
io_unclear | OSError: [Errno 19] No such device
io_unclear | ls: cannot access '/lustre': Transport endpoint is not connected
io_unclear | write: Cannot send after transport endpoint shutdown
crashed | train: loader.c:113: load: Assertion `rows > 0' failed.
crashed | /pytorch/aten/src/ATen/native/cuda/Indexing.cu:1146: x: block: [0,0,0] Assertion `a < b` failed.
crashed | F0101 12:00:00.1 17 net.cc:44] Check failed: count == 4 (3 vs. 4)
crashed | double free or corruption (!prev)
crashed | free(): invalid pointer
crashed | malloc(): unaligned tcache chunk detected
crashed | munmap_chunk(): invalid pointer
crashed | corrupted size vs. prev_size
crashed | *** stack smashing detected ***: terminated
crashed | *** buffer overflow detected ***: terminated
crashed | python3[4711]: segfault at 0 ip 00007f00 sp 00007ffd error 4 in libcuda.so.1
crashed | [n1:17:0:17] Caught signal 11 (Segmentation fault: address not mapped to object at (nil))
crashed | *** SIGBUS (@0x7f) received by PID 17 (TID 0x7f) from PID 1; stack trace: ***
crashed | RuntimeError: DataLoader worker (pid 17) is killed by signal: Bus error.
crashed | RuntimeError: DataLoader worker (pid(s) 17, 18) exited unexpectedly
crashed | run.sh: line 3:   17 Illegal instruction     ./train
crashed | bash: Zeile 1: 1234 Speicherzugriffsfehler  (Speicherabzug geschrieben) ./helper
crashed | 0: run.sh: Zeile 12:  1234 Getötet                 ./helper
crashed | run.sh : ligne 1 : 1234 Erreur de segmentation  (core dumped) ./helper
crashed | run.sh: línea 179: 133821 Violación de segmento (core generado) ./train
crashed | run.sh, linha 3: 133821 Morto                   ./train
crashed | run.sh: строка 3: 133821 Убито                   ./train
crashed | run.sh: 第 3 行: 133821 段错误               ./train
crashed | run.sh: 3 行: 133821 強制終了            ./train
crashed | run.sh: 줄 3: 133821 죽었음               ./train
crashed | Aborted
xid_reset | XID 79
xid_reset | GPU 3: Xid error 48 in the last minute
xid_reset | Detected XID 95 for GPU 2
xid | Xid: 13 on GPU 0
xid_unknown | Detected XID 999 for GPU 1
gpu_lost | Unable to determine the device handle for GPU0000:0B:00.0: GPU is lost.  Reboot the system
gpu_lost | GPU 00000000:0B:00.0 fell off the bus
ecc_error | CUDA APIs have indicated that a double-bit ECC error has occured on GPU 2.
ecc_error | Detected 2 volatile double-bit ECC error(s) in GPU 4.
dcgm_fault | NVLink fatal error on GPU 2, link 3
dcgm_fault | Detected 4 nvlink_flit_crc_error_count_total NvLink errors on GPU 0's NVLink (should be 0)
dcgm_fault | Detected fatal errors on NvSwitch 0 link 7
dcgm_fault | Found 3 faulty memory elements on GPU 1
dcgm_fault | GPU had an uncontained error
nan | step 100 loss=inf
nan | {'loss': nan, 'grad_norm': nan, 'learning_rate': 0.0, 'epoch': 0.5}
nan | {'eval_loss': inf, 'epoch': 1.0}
nan | {"loss": NaN, "step": 3}
nan | "lm loss": NaN
nan | Epoch 3 | loss: tensor(nan, device='cuda:0')
nan | loss=tensor(nan)
nan | AssertionError: found NaN in local forward loss calculation. Device: 3, node: n1
nan | loss | nan
kernel_fault | Nov 28 01:02:03 n1 kernel: nvme nvme0: controller is down; will reset
kernel_fault | n1 kernel: pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0
kernel_fault | Nov 28 01:02:03 n1 kernel: general protection fault: 0000 [#1] SMP
kernel_fault | n1 kernel: Memory failure: 0x123: recovery action for dirty LRU page: Failed
kernel_fault_unclear | n1 kernel: mlx5_core 0000:5e:00.0: Port module event: module 0, Cable error
kernel_fault_unclear | n1 kernel: NVRM: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7
kernel_fault_mild | n1 kernel: mce: CPU0: Core temperature above threshold, cpu clock throttled
nan | iter 7, loss: nan, lr 0.1
nan | epoch 3 train_loss = -inf
nan | Loss is Infinity
nan |  iteration 10/ 100 | number of skipped iterations:   0 | number of nan iterations:   3 |
nan | number of nan iterations: 12
gpu_error | CUDA Runtime Error: an illegal memory access was encountered
gpu_error | HIP Runtime Error: an illegal memory access was encountered
gpu_error | !!!! CUDA Runtime API error (46): all CUDA-capable devices are busy or unavailable
gpu_error | CUDA error in file 'dgemm.cu' in line 12 : unspecified
gpu_error | getLastCudaError() CUDA error : launch of x : (46) x
gpu_error | checkCudaErrors() Driver API error = 0700 from file <x.cpp>, line 3.
gpu_error | Cuda Error at solve.cu:12
gpu_error | hip error: 'x'(700) at x.cpp:3
gpu_error | GPUassert: unspecified launch failure train.cu 120
gpu_error | GPUassert: an illegal instruction was encountered train.cu 120
gpu_error | gpu_assert: misaligned address
gpu_error | RuntimeError: misaligned address
gpu_error | solve.cu:17: invalid program counter
gpu_error | solve.cu:17: hardware stack error
gpu_error | solve.cu:17: operation not supported on global/shared address space
gpu_error | what():  device-side assert triggered
gpu_error | step 7: the launch timed out and was terminated
gpu_error | uncorrectable NVLink error detected during the execution
gpu_error | CUDA Exception: Warp Illegal Address
gpu_error | NVSHMEM error: cuda failed with unspecified launch failure
gpu_error | rocBLAS error: internal error
gpu_error | cuBLAS error 13 at gemm.cu:77
gpu_error_unclear | cuFFT error 3 at fft.cu:1
gpu_error_unclear | NVSHMEM error: no symmetric heap
gpu_error_unclear | rocblaslt error: Cannot read TensileLibrary.dat
nccl_failed | RCCL Runtime Error: 3
network_failed | [n1:4:0:4] mlx5_log.c:179  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 x)
network_failed | [n1:4:0:4] mlx5_log.c:179  Remote access error on mlx5_0:1/IB (synd 0x13 vend 0x88 x)
network_failed | [n1:4:0:4] mlx5_log.c:179  Local protection on mlx5_2:1/IB (synd 0x4 vend 0x51 x)
network_failed | [1700000000.1] [n1:4 :0] ib_device.c:600 UCX  ERROR Local QP operation error on mlx5_0:1
network_failed | [1700000000.1] [n1:4 :0] ucp_worker.c:5 UCX  ERROR Connection reset by remote peer
network_failed | [[5,1],3][btl_openib.c:3690:wc] error polling LP CQ with status RETRY EXCEEDED ERROR
network_failed | The InfiniBand retry count between two MPI processes has been exceeded.
network_failed | [n1][[1,1],0][btl_tcp_frag.c:241:recv] mca_x: readv failed: Connection reset by peer (104)
network_failed | [n1:mpi_rank_3][handle_cqe] Send desc error in msg to 2, wc_opcode=0
network_failed | [n1:mpi_rank_3][handle_cqe] Msg from 2: wc.status=12, wc.wr_id=0x7
network_failed | n2.0: psm3_ep_disconnect: Connection error: Host not responding
network_failed | n2: psm2_ep_connect returned error Operation timed out
job_aborted | Abort(15) on node 3 (rank 3 in comm 0): Fatal error in PMPI_Allreduce: Other MPI error
job_aborted | Fatal error in internal_Allreduce: Other MPI error, error stack:
job_aborted | [n1:4] *** An error occurred in MPI_Allreduce
job_aborted | [n1:4] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
ecc_error | [ERROR] GPU 3 has uncorrectable ECC errors
ecc_error | GPU 2: 4 uncorrectable ECC errors
ecc_error | Uncorrected ECC errors were found on GPU 1
io_error | mmfs: [E] Disk failure. Volume gpfs0. rc = 5. Physical volume nsd3
io_error | mmfs: [X] The mmfs daemon is shutting down abnormally.
io_error | mmfs: [E] File system gpfs0 unmounted by the system with return code 5 reason code 0
io_unclear | mmfs: [E] Node 10.0.0.1 (n1) is being expelled
io_unclear | LustreError: 11-0: scratch-OST0003: operation ost_write to node failed: rc = -5
io_unclear | LustreError: 167-0: scratch-OST0003: This client was evicted by scratch-OST0003
out_of_memory | slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks
out_of_memory | Out of memory: Killed process 4711 (python3) total-vm:1kB
out_of_memory | torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
wrong_values | 3: First rerun: unexpected result is not reproducible within the tolerance (3.1 != 54.31)
wrong_values | 3: Possible transient error!
wrong_values | 3: Rank 3, node n1, device 3, iteration #12: Possible transient error!!
wrong_values | Second rerun: unexpected result is not reproducible on a different GPU, therefore was likely
wrong_values | 3: Rank 3, node n1, device 3, iteration #12: Possible persistent error!!
wrong_values | AssertionError: Parameter hashes not matching across DP replicas
wrong_values | [Rank 3] Hash not matching for decoder.layers.0.weight in model chunk0
network_failed | n1:8 [3] common.cc:187 NCCL WARN NET/IB : mlx5_3:1 async fatal event: local catastrophic
network_failed | n1:8 [3] common.cc:1 NCCL WARN NET/IB : mlx5_3:1 async fatal event on QP (0x7f00) qpn=7
network_failed | n1:8 [3] common.cc:1 NCCL WARN NET/IB : mlx5_3:1 async fatal event on CQ (0x7f): CQ error
network_failed | NCCL WARN NET/IB : mlx5_3:1 async fatal event on SRQ, unused for now (0x7f): SRQ
network_failed | NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)
network_failed | NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: path migration request error(7)
network_failed | NCCL WARN NET/IB : mlx5_3:1 Got async event : local catastrophic error
network_failed | NCCL WARN NET/IB : mlx5_3:1 Got async event : local access violation work queue error
network_failed | NCCL WARN communicator encountered a fatal error (detected in ncclIbIsend)
network_failed | NCCL WARN NET/IB: The error is fatal (No functional devices left). Cannot continue.
network_failed | NCCL WARN NET/IB: Fatal error. Detected 2 failed devices out of 2 devices on the send
network_failed | NCCL INFO NET/IB: ncclIbResiliencyHandle: Got completion with error (devIndex=0, wc->status=
no_examples | 0: val_accuracy: nan
no_examples | 0: accuracy: nan
no_examples | {'eval_accuracy': nan, 'epoch': 1.0}
no_examples | Epoch: [3][10/500] Acc@1 0.31 (nan)
no_examples | step 7 val_acc=nan
nan | perplexity: nan
nan | 3: AssertionError: Rank 3: found NaN in local grad norm in backward pass before data-parallel
nan | RuntimeError: Rank 3: Unexpected result nan (message='found NaN in local grad norm for bucket #0
nan | RuntimeError: Unexpected result inf (message='found Inf in local forward loss calculation')
nan | NaN detected in loss
nan | [0] NaN loss detected at step 7
nan | Found NaN in the training loss, stopping
nan | ERROR - NaN loss during training.
nan | loss is not finite
nan | FloatingPointError: Loss became infinite or NaN at iteration=7!
nan | ValueError: The loss returned in `training_step` is nan.
nan | Batch 7: Invalid loss, terminating training
nan | FloatingPointError: invalid value (nan) encountered in jit(step)
nan | RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.
nan | InvalidArgumentError: CheckNumerics : Tensor had Inf and NaN values
nan | RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be
task_failed | [default] Worker group FAILED. 3/3 attempts left; will restart worker group
task_failed | INFO:x.api:[default] Worker group UNHEALTHY. 1/3 attempts left; will restart worker group
task_failed | 0:   restart_count=1
task_failed | W0101 1:1 multiprocessing/api.py:897] Sending process 96 closing signal SIGTERM
step_aborted | srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
nan_gradient | 5: grad norm: nan
nan_gradient | step 3: 'loss': 1.9, 'grad_norm': nan, 'learning_rate': 0.0, 'epoch': 0.5
kernel_fault | [ 1234.567890] pcieport 0000:17:00.0: AER: Uncorrected (Fatal) error received: 0000:18:00.0
kernel_fault | 7: [ 1234.567890] BUG: unable to handle page fault for address: ffff8881
kernel_fault | [1,0]<stdout>:[   32.298491][  T896] nvme nvme0: Removing after probe failure status: -19
kernel_fault | <2>[ 1234.567890] EXT4-fs (nvme0n1p2): Remounting filesystem read-only
kernel_fault | kern  :crit  : [ 1234.567890] XFS (sda1): Corruption of in-memory data detected
kernel_fault | [Tue Nov 24 12:00:00 2026] md/raid1:md0: Disk failure on nvme1n1, disabling device.
kernel_fault | n1: [Feb23 16:24] megaraid_sas 0000:65:00.0: FW in FAULT state!!
kernel_fault | 2025-01-21T04:41:44,283302+00:00 pcieport 0000:16:01.0: DPC: containment event, status:0x1f01
kernel_fault | 0,3973,227986636,-;kernel BUG at mm/slub.c:379!
kernel_fault |  kernel:[ 1234.567890] Oops: 0000 [#1] PREEMPT SMP NOPTI
kernel_fault | kernel: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP
kernel_fault | [   12.345678 <    0.000844>] Memory failure: 0x1c0de: recovery action for dirty LRU page
kernel_fault | critical medium error, dev sda, sector 3
kernel_fault | nvidia: probe of 0000:1b:00.0 failed with error -1
kernel_fault | bnxt_en 0000:19:00.0 eth0: Firmware fatal reset event
kernel_fault | invalid opcode: 0000 [#1] PREEMPT SMP NOPTI
kernel_fault_unclear | <3>[ 1234.567890] i801_smbus 0000:00:1f.4: SMBus is busy, can't use it!
kernel_fault_unclear | [ 1234.567890] foo 0000:07:00.0: probe failed
kernel_fault_unclear | [ 1234.567890] mlx5_core 0000:5e:00.0 ens1f0np0: Link down
"""
"""Code and line of each fault, as the programs' sources or issues show it, with other names and numbers."""
CASES = [
    tuple(part.strip() if not at else part[1:] for at, part in enumerate(line.split("|", 1)))
    for line in FAULTS.strip().splitlines()
]
HARMLESS = [
    "step 3: 'loss': 1.9, 'grad_norm': nano, 'learning_rate': 0.0, 'epoch': 0.5",
    "+ ret_code=0",
    "+ exit_code=1",
    "+ [[ ret_code=1 != 0 ]]",
    '+ echo "ret_code=1"',
    "start: 'best_loss': inf, 'epoch': 0",
    "Nov 28 01:02:03 n1 kernel: mlx5_core 0000:5e:00.0 ens1f0np0: Link up",
    "Nov 28 01:02:03 n1 kernel: ACPI Error: AE_NOT_FOUND, During name lookup/catalog (20230628/psobject-220)",
    "[   12.345678] mlx5_core 0000:5e:00.0 ens1f0np0: Link down",
    "[   12.345678] ACPI: \\_SB_.PMI0: _PMC evaluation failed: AE_NOT_EXIST",
    "<6>[   12.345678] usb 1-14.1: device descriptor read/64, error -71",
    "[1234.567890] step 10: error 0.1, timeout 30, failed 0",
    "[ 12.345678] training failed to improve, loss 2.1",
    "[2026-11-24 12:00:00.123456] evaluation failed to improve",
    "[rank0]: BUG: the dataset has no labels",
    "[12.345678] BUG: the dataset has no labels",
    "[12.345678] Oops, no samples: 3",
    "[1696723456.123456] [n1:1:0]  ucp_worker.c:1 UCX  WARN  mlx5_0: fatal mode is off, timeout 30 s",
    "[Tue Nov 24 12:00:00 2026] [error] retry of a download",
    "the CPU kernel: 3 ms",
    "bash: Zeile 1: foo: Kommando nicht gefunden.",
    "bash: Zeile 12: 1234 Beendet                 ./helper",
    "Zeile 3: 17 Beispiele",
    "Nov 28 01:02:03 n1 kernel: nvidia 0000:1b:00.0: enabling device (0140 -> 0142)",
    "Nov 28 01:02:03 n1 kernel: python3[11219]: segfault of nothing",
    "Heartbeat blocked for more than 10 seconds.",
    "from jaxlib.xla_extension import XlaRuntimeError",
    "export NCCL_ASYNC_ERROR_HANDLING=1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1 NCCL_DEBUG=WARN",
    "+ echo 'CUDA error: none' > /tmp/x",
    "0: ++ grep -c 'Input/output error' /var/log/kern.log",
    "XID errors: 0",
    "Xid: 0",
    "no XID 79 in the kernel log",
    "checking dmesg for XID 48 63 79",
    "  --abort-on-xid       stop when an XID is seen",
    "xid (transaction) 79",
    "NVLink fatal errors: 0",
    "NVLink Fatal Errors : 0",
    "no NVLink fatal errors",
    "Detected 0 nvlink_replay NvLink errors on GPU 0's NVLink (should be 0)",
    "Found 0 faulty memory elements on GPU 1",
    "0 double-bit ECC errors",
    "UserWarning: `torch.distributed.elastic.multiprocessing.errors.ChildFailedError` will move",
    "from torch.distributed.elastic.multiprocessing.errors import ChildFailedError",
    "a call of `cudaErrorLaunchFailure` is deprecated",
    "FutureWarning: 'hipErrorUnknown' is renamed",
    "#define cudaErrorString x; cudaErrorNotReady is not an error",
    "UserWarning: Plan failed with a cudnnException: cudnn_status: CUDNN_STATUS_NOT_SUPPORTED",
    "cublasLt heuristic: CUBLAS_STATUS_NOT_SUPPORTED, next algorithm",
    "cudnnCreate: CUDNN_STATUS_SUCCESS",
    "sys: [n1:1] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 168",
    "n1:17 [0] NCCL INFO Call to mlx5dv_get_data_direct_sysfs_path failed with error No such device errno 19",
    "vfs_fuse.c:424  UCX  DIAG  failed to watch on '/run/user/0/ucx/vfs.sock': Input/output error, VFS",
    "modprobe: FATAL: Module amdgpu not found in directory /lib/modules/6.8.0-60-generic",
    "modprobe: ERROR: could not insert 'nvidia_peermem': No such device",
    "/w/megatron/core/rerun_state_machine.py:1: SyntaxWarning: assertion is always true, perhaps remove",
    "In the near future GradScaler registers `found_inf: Tensor` to the passed optimizer",
    "EarlyStopping: best loss: inf",
    "val_loss improved from inf to 0.31",
    "grad_norm: inf, loss scale to 32768",
    "Process finished with exit code 0 (exitcode: 0)",
    "slurm: the default daemon is up",
    "non-zero elements: 12",
    "failed (exitcode: 0)",
    "process 17: signal 15 handler installed",
    "fault tolerance: default on",
    "health check assertion passed",
    "Signal handlers: SIGTERM (SIGUSR1)",
    "corrupted images skipped: 0",
    "garbage: free() is called by the allocator",
    "info: inference of 3 infiniband ports",
    "machine check of 4 hosts passed, 0 errors",
    "0 Input errors, 0 output errors",
    "srun: Force Terminated StepId=364.14",
    "CUDA driver error checks: on",
    "CUDA Runtime Error: no error",
    "CUDA runtime errors: 0",
    "CUDA Error count: 0",
    "HIP error 0",
    "GPUassert: no error",
    "cuBLAS error 0",
    "CUDA RUNTIME ERROR: 0",
    "CUBLAS ERROR: SUCCESS",
    "CUDNN ERROR: NONE",
    "matrices are multiplied by GPU 3",
    "psm3_ep_connect() returned without problem",
    "cuBLAS error: success",
    "rocBLAS error handling: throw",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    "checks for misaligned addresses: off",
    "misaligned address: 0",
    " iteration 10/ 100 | number of skipped iterations:   3 | number of nan iterations:   0 |",
    "GPU 3 has 0 uncorrectable ECC errors",
    "GPU 3 has no uncorrectable ECC errors",
    "No uncorrectable ECC errors detected",
    "No uncorrectable ECC error encountered",
    "Checking each GPU for uncorrectable ECC errors",
    "mmfs: [I] Disk nsd3 is up",
    "UCX  INFO  ep_cfg[2]: tag(rc_mlx5/mlx5_0:1)",
    "UCX  WARN  transport 'x' is not available, please use one or more of: tcp",
    "UCX_RC_RETRY_COUNT=7  # transport retry count",
    "psm3_ep_open: multi-rail is on",
    "MPI_Comm_set_errhandler: MPI_ERRORS_ARE_FATAL",
    "LustreError of the last week: 0",
    "NCCL communicator was created on rank 3",
    "3: First rerun: unexpected result is reproducible within the tolerance (3.1 = 3.1). Need to rerun",
    "Second rerun: unexpected result is reproducible on a different GPU, therefore it was likely correct",
    "3: Correct result (but possible Application error) (Spiky loss)",
    "RerunStateMachine initialized in mode RerunMode.VALIDATE_RESULTS",
    "Results are bitwise reproducible; cudnn.deterministic = True",
    "n1:8:9 [3] NCCL WARN NET/IB : mlx5_3:1 Got async event : port active",
    "n1:8:9 [3] NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: client reregistration(17)",
    "n1:8:9 [3] NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: LID changed(11)",
    "n1:8:9 [3] NCCL WARN NET/IB : mlx5_3:1 GID table changed",
    "val_accuracy improved from -inf to 0.31",
    "best_accuracy: -inf",
    "accuracy: 0.7312 | n_nan: 0",
    "perplexity: inf",
    "accelerator: nano, accum: inf",
    "Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 32768",
    "NaN or Inf found in input tensor.",
    "check_for_nan_in_loss_and_grad .................. True",
    "checking for NaN in loss: on",
    "if a NaN loss is detected, training stops",
    "no NaN detected in loss",
    "NaN detected in loss: 0",
    "terminate_on_nan = True; stop when loss is not finite",
    "all parameters are finite",
    "  restart_count=0",
    "max_restarts=3, restart_count=0",
    "[default] Detected 1 new nodes from group_rank=0; will restart worker group",
    "[default] worker group successfully finished. Waiting 300 seconds for other agents to finish.",
]
"""Lines that contain words of a fault but report none."""


def read(data: bytes) -> ParsedLog:
    return logs.parse(io.BytesIO(data))


def with_line(name: str, line: str, *, before_proof: bool = True) -> bytes:
    """Return a passing log with one more line between its own lines, or after its end."""
    data = samples.PASSING[name]
    if not before_proof:
        return data + line.encode() + b"\n"
    # After the first line by which the format is recognised.
    first = {"mxnet": b"Epoch[0]", **dict.fromkeys(("mllog", "mll06", "minigo"), b"run_start")}
    at = data.find(first[name]) if name in first else 0
    at = data.rfind(b"\n", 0, at) + 1
    return data[:at] + line.encode() + b"\n" + data[at:]


def gating(code: str) -> Verdict | None:
    """Return the verdict of a fault before a good end, or None for a remark."""
    return MEANING[code][2]


SNAPSHOTS = [name for name in samples.PASSING if name.startswith("nv") and name != "nvbandwidth"]
"""Formats of nvidia-smi, which describe a node at one moment."""
RUNS = [name for name in samples.PASSING if name not in (*SNAPSHOTS, "nccl_json")]
"""Formats of a run's log, without the JSON of nccl-tests, which any other line makes unproven."""


@pytest.mark.parametrize("name", RUNS)
def test_every_fault_counts_in_every_format_of_a_run(name: str) -> None:
    wrong = []
    for code, line in CASES:
        found = read(with_line(name, line))
        meant = {one.verdict for one in found.findings if one.code == code}
        least = worst([found.verdict, gating(code) or Verdict.PASS])
        if least is not found.verdict or gating(code) not in meant:
            wrong.append((code, line, found.verdict, [one.code for one in found.findings]))
    assert not wrong


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_fault_of_the_machine_counts_in_the_output_of_nvidia_smi_too(name: str) -> None:
    lines = [(code, line) for code, line in CASES if code in OF_THE_MACHINE]
    for code, line in lines:
        for before_proof in (False, True):
            found = read(with_line(name, line, before_proof=before_proof))
            assert found.verdict.gates, (code, line, found.findings)


def test_all_formats_are_tested_except_those_with_their_own_rules() -> None:
    tried = {samples.FORMAT_OF.get(name, name) for name in (*RUNS, *SNAPSHOTS)}
    assert set(logs.FORMATS) - tried == {
        "xid",
        "mlperf_hpc",
        "mlperf_inference",
        "nvidia_smi_dmon",
        "nvidia_smi_table",
    }  # formats that never pass, or that have their own rules
    for code, line in CASES:
        found = read(b"MLPerf Results Summary\n" + line.encode() + b"\n")
        assert code in {one.code for one in found.findings}


def test_faults_count_in_a_log_that_is_read_by_a_definition() -> None:
    rules = LineRules.model_validate(
        {
            "good_end": "^Solution Validates",
            "failures": [],
            "metrics": {"triad": {"pattern": "^Triad: +(\\S+)", "unit": "MB/s", "direction": "higher"}},
        }
    )
    sound = "Triad:           6964.4     0.038113\n{}Solution Validates: avg error less than 1.0e-13\n"
    for code, line in [*CASES, ("", "")]:
        text = sound.format(f"{line}\n").encode()
        found = logs.parse(io.BytesIO(text), format="lines", lines=rules)
        expected = (code and gating(code)) or Verdict.PASS
        assert worst([found.verdict, expected]) is found.verdict, line
        assert code or found.verdict is Verdict.PASS


def test_faults_count_in_a_text_of_unknown_format() -> None:
    for code, line in CASES:
        found = read(f"some words\n{line}\nthe end\n".encode())
        assert code in {one.code for one in found.findings} or found.format == "xid", line
        assert found.verdict is not Verdict.PASS or found.format == "xid"


@pytest.mark.parametrize(("code", "line"), CASES)
def test_a_score_counts_the_faults_of_a_log(code: str, line: str) -> None:
    found = findings_of_log(read(with_line("mllog", line)), scores=True, stopped=True)
    assert code in {one.code for one in found if one.verdict is gating(code)}


@pytest.mark.parametrize("line", HARMLESS)
def test_a_harmless_line_with_words_of_a_fault_is_no_fault(line: str) -> None:
    for name in RUNS:
        found = read(with_line(name, line))
        faults = [one for one in found.findings if one.code in FAULT_TEXTS]
        assert faults == [], name
        # The parsers of these tools read other lines as failures.
        assert found.verdict is Verdict.PASS or name in (
            "nvbandwidth",
            "gpu_burn",
            "nccl_tests",
            "ib_write_bw",
        ), name


def test_every_code_has_a_line_and_the_triggers_are_few() -> None:
    # test_rules.py and test_fault_lines.py have lines with these codes.
    elsewhere = {"traceback", "cancelled", "time_limit", "node_failed", "nccl_peer_lost", "loss_scale"}
    shown = {code for code, _ in CASES}
    assert shown | elsewhere | {"cache_clear_failed", "kernel_fault_unclear"} == FAULT_TEXTS
    used = {trigger for triggers, _ in fault_texts._READERS for trigger in triggers.split(b"|")}
    assert all(len(trigger.strip()) > 2 for trigger in used)
    assert len(fault_texts.SEARCHED) <= 100  # each costs time in every log


MXNET_SPEEDS = (
    "2022-05-10 05:25:25 Node[0] Epoch[0] Batch [0-20]\tSpeed: 13829.46 samples/sec\taccuracy=nan",
    "INFO:root:Epoch[0] Batch [20]\tSpeed: 326.1 samples/sec\taccuracy=nan\ttop_k_accuracy_5=nan",
)


@pytest.mark.parametrize("line", MXNET_SPEEDS)
def test_a_progress_line_of_mxnet_that_counts_no_accuracy_is_harmless_beside_a_good_evaluation(
    line: str,
) -> None:
    found = read(with_line("mllog", line))
    assert (found.verdict, [one for one in found.findings if one.code in FAULT_TEXTS]) == (Verdict.PASS, [])
    for loss in ("cross-entropy=nan", "loss=nan"):
        found = read(with_line("mllog", f"{line}\t{loss}"))
        assert found.verdict is not Verdict.PASS, loss


def test_each_harmless_text_has_a_source_and_no_fault_in_it() -> None:
    for pattern, source in HARMLESS_TEXTS:
        assert len(source) > 20
        assert not any(re.search(pattern, line) for _, line in CASES)


def test_a_fault_in_the_line_of_an_event_counts() -> None:
    data = samples.mllog()
    at = data.find(b"\n", data.find(b"tracked_stats"))
    for torn in (b"CUDA error: an illegal memory access", b" 3: free(): invalid pointer", b"Killed"):
        found = read(data[:at] + torn + data[at:])
        assert found.verdict in (Verdict.FAIL, Verdict.UNPROVEN), torn
        assert {one.code for one in found.findings} & FAULT_TEXTS


def test_a_certain_fault_gives_no_second_finding() -> None:
    for line in (
        "cuBLAS error 13 at gemm.cu:77",
        "rocBLAS error: internal error",
        "mmfs: [E] Disk failure. Volume gpfs0. rc = 5. Physical volume nsd3",
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "RuntimeError: cuSOLVER error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling x",
        "cuFFT error: CUFFT_EXEC_FAILED",
        "cuDNN error: 8, CUDA_ERROR_ILLEGAL_ADDRESS",
        "Stale file handle: Remote I/O error",
    ):
        assert len(read(with_line("mllog", line)).findings) == 1, line


def test_colours_and_progress_bars_hide_no_fault() -> None:
    for line in (
        "\x1b[31mCUDA error\x1b[0m: an illegal memory access",
        " 50%|#####     | 1/2\rfree(): invalid pointer",
        "\x1b[1mMPI_ABORT\x1b[0m was invoked on rank 1",
        "n1: \x1b[31mKilled\x1b[0m\r",
    ):
        assert read(with_line("mllog", line)).verdict.gates, line


def test_a_kernels_log_is_read_by_its_own_rules_alone() -> None:
    log = "[1.0] Linux version 6\n[2.0] nvidia: NVRM: x\n[9.1] EDAC MC0: 1 CE memory read error on DIMM0\n"
    log += "[9.2] python[4711]: segfault at 0 ip 0 sp 0 error 4 in libc.so\n"
    log += "[9.3] Out of memory: Killed process 9\n"
    found = read(log.encode())
    assert (found.format, found.verdict) == ("xid", Verdict.DEGRADED)
    assert {one.code for one in found.findings} == {"memory_error", "out_of_memory"}
    program = read((log + "RuntimeError: CUDA error: unspecified launch failure\n").encode())
    assert program.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    "prefix", [*PREFIXES_OF_TOOLS, "<2>[ 1234.567890] ", " kernel:", "n1: [    4.567890] "]
)
def test_a_line_of_the_kernel_has_its_verdict_in_a_jobs_log_too(prefix: str) -> None:
    wrong = []
    for line, verdict, code in KERNEL_LINES:
        found = read(with_line("mllog", prefix + line))
        if worst([found.verdict, verdict]) is not found.verdict:
            wrong.append((code, line, found.verdict, [one.code for one in found.findings]))
    assert not wrong


def test_two_faults_have_at_least_the_verdict_of_the_worse() -> None:
    chance = random.Random(7)
    for _ in range(200):
        (one, first), (two, second) = chance.sample(CASES, 2)
        found = read(with_line("mllog", f"{first}\n{second}"))
        expected = worst([gating(one) or Verdict.PASS, gating(two) or Verdict.PASS])
        assert worst([found.verdict, expected]) is found.verdict, (first, second)
    assert isinstance(found.findings[0], Finding)
