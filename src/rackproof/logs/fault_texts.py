"""Find the lines of a log that report a fault of a GPU, a rank, a node or a file system.

:meth:`rackproof.logs._reading.Log.scan` passes each line with a text of :data:`SEARCHED` to
:func:`read_fault`, except events of MLPerf and lines that the parser judges itself. The scoring of MLPerf
uses the same codes. :mod:`rackproof.logs.kernel_events` reads the kernel's own lines. To add a fault, add a
rule to ``_RULES`` and its code to :data:`MEANING`. The table core/finding_codes.csv has a sentence for the
operator about each code. Examples::

    RuntimeError: CUDA error: an illegal memory access was encountered    gpu_error
    slurmstepd: error: *** STEP 7.0 ON n07 CANCELLED AT ... ***           cancelled

A rule is tried only on lines that contain one of its *triggers*. Triggers are short, because the new lines of
a block are searched for each of them in turn. One search by `re` with as many alternatives is slower. Many
triggers lack their first letter, so that they match it in both cases. A pattern that ignores case needs a
trigger for each case. The module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from rackproof.core.records import Verdict
from rackproof.logs.kernel_events import KernelEvent, read_kernel_line, read_unknown_line, verdict_of
from rackproof.logs.known_kernel_lines import level_is_error, logged_part
from rackproof.logs.network_links import START_S, BootClock, read_link_change

MEANING: dict[str, tuple[str, Verdict | None, Verdict | None]] = {
    # For each code: a message, the verdict without a proven good end, and the verdict of a line before such
    # an end, or after it if another tool printed a line in between. None makes the line a remark. Between a
    # good end and the output of another tool, each line is a remark, except for the codes of OF_THE_MACHINE.
    "out_of_memory": ("a process ran out of memory", Verdict.FAIL, Verdict.FAIL),
    # Old versions of Slurm read a counter of the job's memory group, which the page cache alone can raise.
    "memory_limit_reached": ("the job reached its memory limit", Verdict.UNPROVEN, None),
    "traceback": ("a Python program printed a traceback", Verdict.FAIL, None),
    "cancelled": ("the job was cancelled", Verdict.FAIL, Verdict.FAIL),
    # Slurm gives a job KillWait (30 s) to end by itself. Only three published logs of rounds 2.1, 4.1, 5.0
    # and 5.1 have this line and an end. They reached their target, and stopped within 17 s of the limit.
    "time_limit": ("the job ran into its time limit", Verdict.FAIL, Verdict.DEGRADED),
    # Both are only remarks. 49 published logs of 5.0 and 5.1 that reached their targets have the first one.
    # A training with automatic loss scaling skips the steps of the second one.
    "step_aborted": ("Slurm ended all tasks of a job step", None, None),
    "nan_gradient": ("the norm of the gradients is not a number in a step", None, None),
    # If a rank crashed before a good end, the log does not prove the later results of other ranks.
    "crashed": ("a process crashed or was killed", Verdict.FAIL, Verdict.UNPROVEN),
    "task_failed": ("a task ended with an error", Verdict.FAIL, Verdict.UNPROVEN),
    "job_aborted": ("a program or its launcher aborted the whole job", Verdict.FAIL, Verdict.FAIL),
    "node_failed": ("Slurm lost a node of the job", Verdict.FAIL, Verdict.FAIL),
    # Short jobs that end well sometimes log this, too, because two daemons end in another order
    # (openpmix/prrte#2694).
    "launcher_lost_node": ("the launcher lost a node of the job", Verdict.FAIL, Verdict.UNPROVEN),
    "pmix_error": ("the processes of the launcher could not communicate", Verdict.FAIL, Verdict.UNPROVEN),
    "gpu_error": ("a GPU's operation failed", Verdict.FAIL, Verdict.FAIL),
    "gpu_error_unclear": ("a GPU's library reports an error", Verdict.FAIL, Verdict.UNPROVEN),
    "ecc_error": ("a GPU reported an uncorrectable error in its memory", Verdict.FAIL, Verdict.FAIL),
    "gpu_lost": ("a GPU has fallen off the bus", Verdict.FAIL, Verdict.FAIL),
    "dcgm_fault": ("DCGM reports a faulty GPU, NVLink or NVSwitch", Verdict.FAIL, Verdict.FAIL),
    "nccl_failed": ("an operation of NCCL failed", Verdict.FAIL, Verdict.UNPROVEN),
    "nccl_peer_lost": ("NCCL lost a peer or a link", Verdict.FAIL, Verdict.UNPROVEN),
    "network_failed": ("a transfer over the network failed", Verdict.FAIL, Verdict.UNPROVEN),
    "wrong_values": ("a repeated computation proves wrong values", Verdict.FAIL, Verdict.FAIL),
    "collective_timeout": ("a collective operation timed out", Verdict.FAIL, Verdict.FAIL),
    "nan": ("the loss is not a number", Verdict.FAIL, Verdict.FAIL),
    # An accuracy is a share of the counted examples, so it is not a number only if no example was counted.
    "no_examples": (
        "an accuracy is not a number: no example was counted",
        Verdict.UNPROVEN,
        Verdict.UNPROVEN,
    ),
    "loss_scale": (
        "the loss scale became so small that the training cannot continue",
        Verdict.FAIL,
        Verdict.FAIL,
    ),
    # No log shows which data could not be written or read.
    "disk_full": ("a disk is full", Verdict.FAIL, Verdict.UNPROVEN),
    "io_error": ("a disk or its file system failed", Verdict.FAIL, Verdict.FAIL),
    "io_unclear": ("a file system or a device became unavailable", Verdict.FAIL, Verdict.UNPROVEN),
    "cache_clear_failed": ("the page cache was not cleared", Verdict.DEGRADED, Verdict.DEGRADED),
    "xid": ("the driver reported an XID", Verdict.DEGRADED, Verdict.DEGRADED),
    "xid_unknown": ("an unknown XID", Verdict.UNPROVEN, Verdict.UNPROVEN),
    "xid_reset": ("an XID that requires a reset or more", Verdict.FAIL, Verdict.FAIL),
    "kernel_fault": ("the kernel reports a hardware fault", Verdict.FAIL, Verdict.FAIL),
    "kernel_fault_unclear": ("the kernel reports a possible fault", Verdict.UNPROVEN, Verdict.UNPROVEN),
    "kernel_fault_mild": ("the kernel reports a corrected error", Verdict.DEGRADED, Verdict.DEGRADED),
}
FAULT_TEXTS = frozenset(MEANING)
"""Codes of all faults that are found by their text."""
OF_THE_MACHINE = frozenset(
    {
        "ecc_error",
        "gpu_lost",
        "dcgm_fault",
        "node_failed",
        "io_error",
        "wrong_values",
        "xid_reset",
        "kernel_fault",
    }
)
"""Faults of a GPU, a disk or a node. Their lines have the last verdict of :data:`MEANING` after a good end,
too."""

SLURM_CODES = (
    (b"TIME LIMIT", "time_limit"),
    # The line goes on with the reason: "CANCELLED AT 2025-10-08T00:32:36 DUE TO NODE FAILURE".
    (b"NODE FAILURE", "node_failed"),
    (b"CANCELLED AT", "cancelled"),
    (b"OOM Killed", "out_of_memory"),
    (b"oom_kill event", "out_of_memory"),
    (b"oom-kill event", "out_of_memory"),
    (b"memory limit at some point", "memory_limit_reached"),
    (b"xceeded memory limit", "out_of_memory"),
    (b"xceeded job memory limit", "out_of_memory"),
    # "Force Terminated" reports no fault, as "Job step aborted" in MEANING.
    (b"Timed out waiting for job step to complete", "task_failed"),
    (b"Node failure", "node_failed"),
)
"""Texts in error lines of Slurm (``slurmstepd: error: ...``), each with its code. If a line has several of
them, the first one in this table counts."""
_DIED = re.compile(rb"tasks? [\d,\-]{1,200}: (?!Exited with)[A-Z]")
"""Pattern of a task that a signal ended: "srun: error: n07: task 3: Segmentation fault"."""
_EXITED = re.compile(rb"Exited with exit code (?!0\b)")

_ECHO = re.compile(rb"^\s*(?:\d{1,6}: |\[[\w,.-]{1,40}\]:? ?)?\++ ")
"""Pattern of a command that the shell prints after a plus sign because of ``set -x``."""
HARMLESS_TEXTS: tuple[tuple[str, str], ...] = (
    (
        r"PMIX ERROR: ERROR in file gds_ds\d\d_lock_pthread\.c",
        "published logs of 4.1 and 5.1: some 1,000 lines of runs that reached their targets",
    ),
    (
        r"NCCL INFO Call to \w{1,60} failed with error ",
        "published logs of 4.1: mlx5dv_get_data_direct_sysfs_path, which older cards do not have",
    ),
    (
        r"UCX +(?:DIAG|DEBUG|INFO) +failed to watch on '[^']{1,200}vfs\.sock'",
        "published logs of 5.1: UCX without its monitoring socket",
    ),
    (
        r"Plan failed with an? \w{0,20}[Ee]xception",
        "github.com/pytorch/pytorch/issues/121834: PyTorch tries the next plan of cuDNN",
    ),
    (
        r"SyntaxWarning: assertion is always true",
        "published logs of 5.1: Python on Megatron's source",
    ),
    (
        r"Batch \[[\d-]{1,20}\]\s+Speed: \S{1,20} samples/sec"
        r"(?:\s+\w{0,30}accuracy\w{0,20}=(?:nan|[\d.]+))+\s*$",
        "published logs of 2.1: MXNet's ResNet counts no examples while it trains",
    ),
)
"""Pattern and source of lines that contain the text of a fault but are harmless."""
_HARMLESS = re.compile("|".join(f"(?:{pattern})" for pattern, _ in HARMLESS_TEXTS).encode())

_SOFT_MEMORY = re.compile(rb"ran out of memory trying|may encounter an out.of.memory|run out of memory")
"""Pattern of the words with which TensorFlow's allocator announces a retry, which is no fault."""
# Examples are "loss: nan (nan)", "loss_mask: 0.53 (nan)", "loss = NaN", "Loss function: nan", "loss=inf",
# "'loss': nan", "\"lm loss\": NaN" and "loss: tensor(nan, device='cuda:0')" (Megatron's). A perplexity of inf
# is only the exponential of a large loss.
_IS = rb"['\"]?(?: function| is| became)?[\s:=(|]{0,8}(?:tensor\()?(?:[-+0-9.e]{1,30} ?\()?[-+]?"
_NAN_WORD = re.compile(
    rb"(?i)loss\w{0,40}" + _IS + rb"(?:nan|inf(?:inity)?)(?![a-z0-9_])|"
    rb"(?<![a-z])(?:perplexity|ppl)['\"]?[\s:=(|]{1,8}nan(?![a-z0-9_])"
)
# Examples are "val_accuracy: nan" and "Acc@1 0.31 (nan)".
_NAN_ACCURACY = re.compile(
    rb"(?i)(?<![a-z])acc(?:uracy|uracies)?(?![a-z])[\w@]{0,20}" + _IS + rb"nan(?![a-z0-9_])"
)
_NAN_GRADIENT = re.compile(rb"(?i)\bgrad(?:ient)?s?[ _-]?norm" + _IS + rb"nan(?![a-z0-9_])")
_NAN_SENTENCE = re.compile(
    # Megatron (pretrain_gpt.py, param_and_grad_buffer.py), whose checks end the training.
    rb"(?i)\bfound (?:nan|inf) in local |"
    # Training programs such as Detectron2 (train_loop.py) and Lightning, and Keras's TerminateOnNaN.
    rb"\bloss(?:es)?(?: returned in \S{1,40})? (?:is|are|was|were|has become|have become|becomes?|became) "
    rb"(?:not (?:a )?finite|non-?finite|infinite|nan\b|inf\b)|\binvalid loss, terminating training|"
    rb"\b(?:nan|non-?finite|infinite)\b[\w /]{0,20} (?:detected|found|encountered|occurred)"
    rb"[\w ]{0,30}[ _]loss|"
    rb"\b(?:nan|non-?finite|infinite) (?:\w{1,20} )?loss(?:es)? "
    rb"(?:(?:was |were )?(?:detected|found|encountered|occurred)|during training)|"
    rb"\b(?:detected|found|encountered|got) (?:a )?(?:nan|non-?finite|infinite)\b(?: or \w{3})?(?: values?)? "
    rb"(?:in |for )?(?:the )?(?:\w{1,20} ){0,2}loss|"
    # JAX (jax_debug_nans), PyTorch's detection of anomalies and of gradients to clip, TensorFlow's
    # check_numerics.
    rb"\binvalid value \(nan\) encountered in |\breturned nan values in its \d|"
    rb"for gradients from `parameters` is non-finite|\btensor had (?:(?:-?inf|and) ){0,3}nan values"
)
"""Pattern of sentences about a loss or a gradient that is not a number."""
_NO_NAN = re.compile(
    rb"(?i)\b(?:no|not|without|any|if|when|whether|until|unless|for|check\w*|skip\w*|ignor\w*)\b[^.;:\]]*$|"
    rb"(?<![\d.])0 $"
)
"""Pattern of the text before such a sentence if it did not happen, such as "if the" or "no"."""
_NAN_COUNT = re.compile(rb"[\w ]{0,12} ?[:=] ?(?:0|false|no|off)\b", re.IGNORECASE)
"""Pattern of what follows such a sentence if it did not happen, such as ": 0"."""
STAMPS = (b".000000]", b".000000>]", b"00:00:00 0000]", b"00 00:00] ", b"00,000000", b",-;")
"""Texts of the times that dmesg and /dev/kmsg write, with 0 for each digit."""
_LINE_WORDS = "Zeile|ligne|línea|riga|linha|строка|linia|第|줄"
"""The word "line" before a number, in the translations of bash."""
_LINE_NUMBERS = ("0 行: ".encode(), *(f"{word} 0".lower().encode() for word in _LINE_WORDS.split("|")))
SHAPES = (*STAMPS, b"[#0", *_LINE_NUMBERS)
"""Entries of :data:`SEARCHED` that have 0 for each digit. After the times follow the number of a kernel's
crash and the number of a script's line."""
_TRANSLATED_CRASH = (
    rf"(?:(?:{_LINE_WORDS}) \d+ ?(?:行|列)?|\d+ 行)(?::|{chr(0xFF1A)}) *\d{{1,10}} +(?:"
    # Segmentation fault.
    r"Speicherzugriffsfehler|Erreur de segmentation|Violación de segmento|Errore di segmentazione|"
    r"Falha de segmentação|Ошибка сегментирования|段错误|程式記憶體區段錯誤|"
    r"세그멘테이션 오류|Naruszenie ochrony|"
    # Killed.
    r"Getötet|Processus arrêté|Terminado \(killed\)|Ucciso|Morto|Убито|已杀死|強制結束|強制終了|죽었음|"
    r"Unicestwiony|"
    # Aborted.
    r"Abgebrochen|Abandon|Abortado|Annullato|Аварийный останов|已放弃|中止|중지됨|Przerwane|"
    # Bus error.
    r"Bus-Zugriffsfehler|Erreur du bus|Error del bus|Errore di bus|Erro no barramento|Ошибка шины|"
    r"总线错误|匯流排錯誤|バスエラー|버스 오류|Błąd szyny)"
).encode()
"""Pattern of what bash prints about a killed program in other languages: "Zeile 1: 1234 Getötet". The words
are those of the translations of bash and of the C library (glibc)."""
NO_NUMBERS = (b"nan", b"inf")
"""Entries of :data:`SEARCHED` with which other words may begin (nano, info). Such an entry counts only if no
letter follows."""
_NAN_STEPS = re.compile(rb"number of nan iterations:\s{0,20}[1-9]")
"""Pattern of Megatron's count of iterations whose loss is not a number. It prints 0 on a healthy machine."""
_BEST_SO_FAR = re.compile(rb"(?i)\b(?:best|lowest|min(?:imum)?|prev(?:ious)?|initial)[\w .-]{0,16}$")
"""Pattern of the text before a loss of inf that is only the start value of Keras or Lightning."""
_CACHE_FAILED = re.compile(rb"(?i)denied|cannot|read-only|failed|no such|unable|error")
"""Pattern of the words of a failure in a line about drop_caches, the file that clears the page cache."""


@dataclass(frozen=True)
class _Rule:
    """A rule that finds the lines of a fault. Each such line contains a trigger, and matches the pattern.

    Triggers are texts, in their case. ``code`` is a key of :data:`MEANING`.
    """

    code: str
    triggers: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


def _make_rule(code: str, triggers: bytes, *patterns: bytes) -> _Rule:
    """Return a rule for lines that match any of the patterns. Bars separate the triggers."""
    return _Rule(code, tuple(triggers.split(b"|")), re.compile(b"|".join(patterns)))


def _errors_of(names: bytes) -> bytes:
    """Return triggers for the word "error" after each name, in the cases in which programs print it."""
    return b"|".join(name + word for name in names.split(b"|") for word in (b" error", b" Error", b" ERROR"))


_LIBRARY = rb"\b(?:CU(?:DNN|BLAS|FFT|SOLVER|SPARSE|RAND|TENSOR)|HIP\w{2,8}|ROC\w{2,8}|HSA|MIOPEN)_"
"""Pattern of the beginning of an error's name in libraries of CUDA and ROCm."""
_GPU_ERROR_SENTENCES = (
    # cudaGetErrorString and hipGetErrorString return these texts. Programs print them after a prefix.
    rb"\b[Aa]n illegal (?:memory access|address|instruction) (?:was|has been) encountered|"
    rb"\bunspecified launch failure|\b(?<!no )device-side assert triggered|"
    rb"\bthe launch timed out and was terminated|\b[Uu]ncorrectable NVLink error (?:was )?detected|"
    rb"\boperation not supported on global/shared address space|"
    # These words are also in texts about such errors. In an error's line, they come first or after a prefix.
    rb"(?:^|[:'\"\]] ?)(?:misaligned address|hardware stack error|invalid program counter)(?!\w| ?[:=] ?0\b)|"
    # A debugger uses these words for the same errors.
    rb"\bWarp (?:Illegal (?:Address|Instruction)|Misaligned Address)\b"
)
_NO_ERROR = rb"(?!\W{0,3}(?:0+\b|0x0+\b|(?i:none|no error|success|off|on|ok)\b))"
"""Pattern of what follows "error" in a line of a program that had none, such as ": 0" or ": no error"."""
_LIBRARY_NAMES = (
    rb"(?:(?:cu|roc|hip)(?:DNN|BLAS|BLAS-?LT|FFT|SOLVER|SPARSE|RAND|TENSOR)|MIOpen|NVSHMEM|ROCSHMEM)"
)
"""Pattern of the names of libraries of CUDA and ROCm, ignoring case."""
_RULES = (
    _make_rule(
        "crashed",
        (
            b"Killed|tion fault|segfault|Bus error|core dumped)|terminate called |Fatal Python error|"
            b"eceived signal|aught signal|on signal |by signal|Fatal signal| received by PID|Aborted|(): |"
            b"corrupt|detected ***|Assertion |Check failed: |exited unexpectedly|llegal instruction|"
            b"loating point exc"
        )
        + b"|"
        + b"|".join(_LINE_NUMBERS),
        # "Killed" may also be the heading of a column.
        rb"(?:^|: |\d>: ?)(?:Killed|Aborted|Illegal instruction|Floating point exception)\s*$",
        rb"line \d+: +\d+ (?:Killed|Aborted|Illegal instruction|Floating point exception)|\(Killed\)",
        _TRANSLATED_CRASH,
        rb"[Ss]egmentation fault|\bBus error|core dumped\)|: segfault at ",
        rb"terminate called (?:after|recursively|without)|Fatal Python error: |Process received signal",
        rb"Signal \d+ \(SIG\w+\) received by PID|exited on signal [1-9]|(?:is|was) killed by signal",
        rb"[Cc]aught signal \d|[Rr]eceived signal (?:[4678]|11)\b|Fatal signal \d|\*\*\* SIG\w+ \(",
        # The C library prints these messages about a damaged heap or stack.
        rb"double free or corruption|\bcorrupted (?:size|double-linked|unsorted)|smashing detected \*\*\*",
        rb"buffer overflow detected \*\*\*|\b(?:free|malloc|realloc|calloc|munmap_chunk)\(\): [a-z]",
        rb"\bAssertion .{1,300} failed|(?:^|\d: )Assertion failed",
        rb"(?:\]|:\d{1,6}\)?:?) Check failed: ",
        rb"worker(?:\(s\))? \(pid(?:\(s\))? [\d, ]{1,200}\) exited unexpectedly",
    ),
    _make_rule(
        "gpu_error",
        (
            # " error" alone is in many lines, and these patterns take longer than a search for many triggers.
            _errors_of(
                b"CUDA|Cuda|cuda|HIP|Hip|hip|untime|UNTIME|river|RIVER|API|ernel|ERNEL|aunch|AUNCH|"
                b"blas|BLAS|blasLt|BLASLt|BLASLT|blaslt"
            )
            + b"|system error|stack error|NVLink error|Cuda failure|CUDA failure|_STATUS_|CUFFT_|"
            b" by GPU|CudaError|GPU Hang|llegal |Illegal |launch failure|assert|Assert|timed out|"
            b"isaligned |program counter|shared address space"
        ),
        rb"C(?:uda|UDA) failure(?:: | at | \d| \S{1,100}:\d| ')",
        rb"unhandled (?:cuda|hip|system) error",
        rb"ncclUnhandledCudaError",
        _GPU_ERROR_SENTENCES,
        rb"(?i:\b(?:CUDA|HIP)(?:[ _](?:runtime|driver|kernel|launch))?(?:[ _]API)? error)"
        rb"(?: ?[:=(]| ?#?(?=\d)| at | in (?=\S{1,200}\.\w|file|line|function)| code | detected)" + _NO_ERROR,
        rb"(?i:\b(?:Runtime|Driver) API error)(?: ?[:=(]| (?=\d)| in file | code )" + _NO_ERROR,
        # The best-known macro for checks of CUDA prints this only for an error.
        rb"(?i:\bGPU_?assert: ?)(?=[a-z])" + _NO_ERROR,
        # The numbers are the codes of EXECUTION_FAILED, INTERNAL_ERROR and MAPPING_ERROR.
        rb"(?i:\b(?:cu|hip|roc)blas(?:lt)? error)"
        rb"(?::? ?\(?(?:11|13|14)\b|: (?:internal error|execution failed))",
        _LIBRARY
        + rb"(?:STATUS_)?(?:EXECUTION_FAILED|EXEC_FAILED|INTERNAL_ERROR|MAPPING_ERROR|LAUNCH_FAILURE)",
        rb"\bHSA_STATUS_ERROR|Memory access fault by GPU|\bHW Exception by GPU|\bGPU Hang\b",
    ),
    _make_rule(
        "gpu_error_unclear",
        (
            _errors_of(
                b"DNN|dnn|BLAS|blas|BLASLt|blasLt|BLASLT|blaslt|FFT|fft|OLVER|olver|PARSE|parse|RAND|rand|"
                b"ENSOR|ensor|IOpen|IOPEN|iopen|SHMEM|shmem|API|status|STATUS"
            )
            + b"|_STATUS_|CUFFT_|initialize NVML| fail|No devices were found|infoROM is corrupt|"
            b"XlaRuntimeError"
        ),
        _LIBRARY
        + rb"STATUS_(?!SUCCESS|NOT_SUPPORTED|EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|ERROR)[A-Z]",
        rb"\bCUFFT_(?:ALLOC_FAILED|SETUP_FAILED|INVALID_\w{1,20}|NO_WORKSPACE|LICENSE_ERROR|PARSE_ERROR)",
        rb"(?i:\b"
        + _LIBRARY_NAMES
        + rb" (?:API |status )?error)(?:: ?(?=\S)| ?\(?(?=\d)| code )"
        + _NO_ERROR,
        rb"(?i:\b(?:CUDA|HIP) (?:call |API |kernel |function )?failed with )" + _NO_ERROR,
        # JAX ends with this exception and a status. With "Out of memory", another rule also applies.
        rb"(?<![`'\"])\bXlaRuntimeError: [A-Z_]{5,30}: ",
        # nvidia-smi and programs that use its library print these messages.
        rb"Failed to initialize NVML: |NVIDIA-SMI has failed because|^No devices were found\s*$",
        rb"\binfoROM is corrupted at gpu ",
    ),
    _make_rule(
        "ecc_error",
        b"ECC error|ECC Error|emory error",
        rb"(?<!\b[Nn]o )(?<!\b0 )\b[Uu]ncorrect(?:able|ed) ECC errors? (?:(?:was|were|has been|have been) )?"
        rb"(?:encountered|detected|found|reported)",
        rb"\bGPU\W{0,2}\d{1,3}\b.{0,60}\b(?:has|had|have|reports?|reported|shows?|with) "
        rb"(?:(?:[1-9]\d{0,9}|some|new|pending|volatile|aggregate|DRAM|SRAM) ){0,4}"
        rb"[Uu]ncorrect(?:able|ed) (?:volatile |DRAM |SRAM )?(?:ECC|memory) errors?(?! ?[:=] ?0\b)",
        rb"(?<![\d.])[1-9]\d{0,9} (?:volatile )?[Uu]ncorrect(?:able|ed) ECC errors?\b",
        rb"Double Bit ECC [Ee]rror(?!s? *[:=]? *0\b)|[1-9]\d* volatile double-bit ECC error",
        rb"double-bit ECC error has occ",
    ),
    _make_rule(
        "gpu_lost",
        b"off the bus|device handle",
        rb"GPU.{0,80}(?:fallen|fell) off the bus|\bGPU is lost|Unable to determine the device handle for G",
    ),
    _make_rule(
        "dcgm_fault",
        b"fatal|Fatal|Link error|faulty mem|uncontained error|no error was|errors and row| Fail",
        # This is a row in the table of dcgmi diag.
        rb"^\|[^|]{1,60}\| Fail\b",
        rb"(?i:(?<!no )(?<!0 )\bnv-?link fatal(?! ?(?:errors?|count)? *[:=]? *(?:0|none|no|ok|pass)\b))",
        rb"(?i:(?<!no )(?<!non-)\bfatal (?:nvlink|nvswitch)(?! errors? *[:=] *(?:0|none)\b))",
        rb"Detected [1-9]\d* [\w ]{1,60} NvLink errors on GPU|(?<!non)fatal errors? on NvSwitch",
        rb"Found [1-9]\d* faulty memory elements|had an uncontained error|memory mismatch was detected",
        rb"errors and row remapping failed",
    ),
    # Only losses of peers and links are listed. NCCL also logs warnings when connections close ("Could not
    # receive type", "Accept failed"). Thirty of 2,978 published logs of 4.1 and 5.1 have such lines. Other
    # warnings report features that a machine lacks ("Cannot enable MSCCL++").
    _make_rule(
        "nccl_peer_lost",
        b"NCCL WARN",
        rb"NCCL WARN .{0,200}(?:[Gg]ot completion .{0,80}(?:status=[1-9]|error)|Connection closed by remote|"
        rb"Remote process exited|[Cc]onnection reset|Abort|timed? ?out)",
    ),
    _make_rule(
        "nccl_failed",
        (
            b"CCL error|CCL Error|CCL ERROR|untime Error|untime error|CCL failure|SystemError|InternalError|"
            b"RemoteError|icator was aborted| fail"
        ),
        rb"(?i:\b[NR]CCL (?:(?:runtime )?error|failure)(?: in)?)(?:: | \S{1,200}:\d| \d)",
        rb"\b[NR]CCL communicator was aborted on rank",
        rb"(?<![`'\"])\bnccl(?:SystemError|InternalError|RemoteError)\b",
        # The tests of NCCL and RCCL print this message.
        rb"\bTest failure \S{1,100}:\d",
    ),
    _make_rule(
        "network_failed",
        (
            b"n with error|d with error|etry count|IBV_WC_|async event|Async event|async fatal|a fatal error|"
            b"error is fatal|Fatal error. Detected|access error|operation error|"
            b"OP error|request error|protection error|length error|UCX  ERROR|UCX ERROR|UCX  FATAL|UCX FATAL|"
            b"error polling|network error|desc error|onnection error|returned error|"
            b"(synd 0x|wc.status|timed out| failed: Conn"
        ),
        # NCCL (net_ib.cc, since 2.28 net_ib/common.cc) prints the names of events that libibverbs has, such
        # as "port error" and "local catastrophic error". Events without "error" are harmless: "port active".
        rb"[Gg]ot (?:non-fatal )?async event ?: ?(?:[\w ]{0,60}\berror\b|device fatal|[QC]P \w{0,20} ?fatal)",
        rb"\basync fatal event(?: on |:)|\bcommunicator encountered a fatal error \(detected in ",
        # NCCL (net_ib/p2p_resiliency.cc) prints these messages. It can also continue without one of several
        # cards.
        rb"NET/IB: (?:The error is fatal \(|Fatal error\. Detected [1-9])",
        rb"[Gg]ot completion with error|Completion with error at (?:client|server)",
        rb"(?:[Tt]ransport|RNR|[Rr]eceive-no-ready) retry count(?:er)? exceeded|IBV_WC_\w{1,20}_ERR\b",
        # UCX writes this for each completion of a ConnectX that is not a success.
        rb" on \w{2,40}:\d{1,2}/(?:IB|RoCE\w{0,6}) \(synd 0x(?!0+\b)",
        rb"\b(?:Remote access|Remote operation|Remote OP|Remote invalid request|Local QP operation|"
        rb"Local protection|Local access|Local length) error on \w{2,40}:\d",
        rb"\bUCX +(?:ERROR|FATAL) .{0,160}(?:[Cc]onnection reset|[Ee]ndpoint timeout|is unreachable|"
        rb"peer failure|keepalive|IB Async event|port error|[Ff]atal error)",
        rb"\bIB Async event on \w{2,40}:? .{0,60}(?:error|fatal|catastrophic)",
        # Open MPI without UCX, and MVAPICH, print these messages.
        rb"error polling [A-Z]{2} CQ with status [A-Z]|stack has reported a network error event",
        rb"retry count between two MPI processes has been exceeded|\bSend desc error in msg to \d",
        rb"\bwc\.status ?= ?[1-9]",
        rb"\bbtl_tcp_.{1,120} failed: Connection (?:reset by peer|timed out)",
        # PSM2 and PSM3 of Cornelis Networks and Intel print these messages.
        rb"(?i:\bpsm[23]?_ep_\w{1,30}(?:\(\))?(?::| returned| failed).{0,80}"
        rb"(?:error|timed out))|\bPSM[23]? Endpoint connection error",
    ),
    _make_rule(
        "wrong_values",
        b"reproducible|transient error!|persistent error!|not matching",
        # Megatron (rerun_state_machine.py) computes an unexpected result again. If the second result is the
        # same, Megatron prints other words.
        rb"unexpected result is not reproducible (?:within the tolerance|on a different GPU)",
        rb"\bPossible (?:transient|persistent) error!",
        # Megatron (utils.py, training.py) compares the weights of GPUs that compute the same ones.
        rb"\bParameter hashes not matching across DP replicas|\bHash not matching for \S+ in model chunk",
    ),
    _make_rule(
        "collective_timeout",
        b"atchdog|process down|erminating the process|timed out",
        rb"Watchdog caught|taking the entire process down|Terminating the process after",
        rb"watchdog thread terminated with exc",
        rb"watchdog got stuck|[Hh]eartbeat monitor timed out|operations have failed or timed out",
    ),
    _make_rule(
        "job_aborted",
        b"MPI_ABORT|MPI_Abort|ChildFailedError|Abort(|Fatal error in |error occurred in MPI_|ARE_FATAL (",
        rb"MPI_ABORT was (?:invoked|called)|application called MPI_Abort\(",
        # MPICH and the programs that Intel and Cray built from it print these messages.
        rb"\bAbort\(-?\d{1,12}\) on node \d|\bFatal error in (?:internal_|P?MPI_)[A-Z]\w{2,40}: ",
        rb"\*\*\* An error occurred in MPI_[A-Z]|\*\*\* MPI_ERRORS_ARE_FATAL \(",
        # A colon follows the exception that ended the launcher. Without it, this is a name in a warning.
        rb"(?:^|[\s.])ChildFailedError: *$",
    ),
    _make_rule(
        "task_failed",
        (
            b"exitcode|non-zero|BAD TERMINATION|daemon|loading shared lib|error: Unable to create|"
            b"sending signal|+ exit|exited due to|by signal |restart worker group|restart_count=|"
            b"closing signal|+ ret_code="
        ),
        # torchrun (torch/distributed/elastic: agent/server/api.py, multiprocessing/api.py) starts all
        # processes again after one failed, and ends those that still run.
        rb"Worker group (?:FAILED|UNHEALTHY)\. .{0,40}will restart worker group|\brestart_count=[1-9]",
        rb"Sending process \d{1,10} closing signal SIG",
        rb"(?:mpirun|mpiexec|prterun) has exited due to process rank",
        rb"^timeout: sending signal \w{1,10} to command|^\++ exit (?!0\b)\d{1,3}\s*$",
        # The run scripts of MLPerf store the status of the training in ret_code. In 95,000 published lines of
        # rounds 0.6 to 5.1, it is 0. Scripts of others may store the status of a probe, but no signal's.
        rb"\+ ret_code=(?!0\b)\d{1,3}\s*$|\+ exit_(?:code|status)=1(?:29|3\d|4[0-3])\s*$",
        rb"error while loading shared libraries: |srun: error: Unable to create step",
        rb"failed \(exitcode: (?!0\))|exitcode *: (?!0\b)-?\d{1,3} *\(pid",
        rb"process(?:es)? (?:returned a|exited with) non-zero|BAD TERMINATION OF ONE",
        rb"^Command (?:exited with non-zero status|terminated by signal) \d",
        rb"[Aa] daemon (?:\(pid|died|on node .{1,200} failed)",
    ),
    _make_rule("step_aborted", b"step aborted", rb"\bsrun: Job step aborted\b"),
    _make_rule(
        "launcher_lost_node",
        b"daemon",
        rb"(?:ORTE|PRTE|PRRTE) (?:has )?lost communication with|lost connection to (?:a |its )?daemon",
    ),
    _make_rule("pmix_error", b"MIX ERROR", rb"PMIX ERROR: "),
    _make_rule("disk_full", b"No space left on device", rb"No space left on device"),
    _make_rule(
        "io_error",
        b"nput/output error|emote I/O error|needs cleaning|mmfs| failure",
        rb"\bInput/output error|\bRemote I/O error|\bStructure needs cleaning",
        # IBM's GPFS gives up a disk or the file system.
        rb"\bDisk failure\. Volume \S{1,80} rc = (?!0\b)\d|\bmmfs\w{0,5}: \[X\] ",
        rb"\bmmfs\w{0,5}: .{1,80} unmounted by the system with return code (?!0\b)\d",
    ),
    _make_rule(
        "io_unclear",
        b"Stale |No such device|endpoint|mmfs|LustreError",
        rb"\bStale (?:NFS )?file handle|\[Errno 19\]",
        rb"(?<!modprobe: )(?:Error|ERROR|failed)\b.{0,120}: No such device\s*$",
        # A program may read the peer of a connection that is already closed, which is no fault.
        rb"^(?!.{0,200}\bget(?:peer|sock)name\b).*Transport endpoint is not connected",
        rb"after transport endpoint shutdown",
        rb"\bmmfs\w{0,5}: \[E\] ",
        rb"\bLustreError: .{0,200}(?:client was evicted|\brc = -(?:5|30|108|110)\b)",
    ),
)


def _read_slurm(line: bytes) -> str | None:
    """Return the code of an error line of Slurm, or None."""
    after = line[line.find(b": error: ") :]
    meant = next((code for text, code in SLURM_CODES if text in after), None)
    causes = (("task_failed", _EXITED), ("crashed", _DIED))
    return meant or next((code for code, pattern in causes if pattern.search(after)), None)


_XID_CODES: dict[Verdict | None, str] = {Verdict.FAIL: "xid_reset", Verdict.UNPROVEN: "xid_unknown"}
_KERNEL_CODES: dict[Verdict | None, str] = {
    Verdict.FAIL: "kernel_fault",
    Verdict.UNPROVEN: "kernel_fault_unclear",
}
KERNEL_CODES = frozenset({"kernel_fault_mild", *_KERNEL_CODES.values()})
"""Codes of faults in lines of the kernel, without XIDs."""
# An XID is the number of an error that NVIDIA's driver logs for a GPU. An SXid is the number of an error of
# an NVSwitch.
_BARE_XID = re.compile(
    rb"\bX[Ii][Dd](?: ?(?:error|code|number))?(?: ?[:=#] ?| )(\d{1,3})\b(?! *(?:errors|times))"
)
"""Pattern of an XID without the driver's prefix, such as "XID 79" or "Xid error: 48"."""
_NO_XID = re.compile(
    rb"(?i)\b(?:no|not|without|any|0|check\w*|look\w*|search\w*|scan\w*|watch\w*|ignor\w*|filter\w*|grep)\b[^.;]*$"
)
"""Pattern of the text before an XID that did not occur, such as "no" or "checking for"."""
_IGNORED_KINDS = ("program_crashed", "out_of_memory", "cpu_throttled", "damaged_line", "xid")
"""Kinds of kernel events that :func:`_read_kernel` ignores, because other rules of this module read them, or
because they are no faults of a run."""
_OF_PROGRAMS = ("program_crashed", "out_of_memory", "damaged_line", "xid", "sxid")
"""Kinds of kernel events in lines of syslog that other rules of this module read."""
_PLAIN_WORDS = ("machine_check", "kernel_error", "memory_error", "task_hung")
"""Kinds of kernel events whose words are also in lines of programs."""
_OF_KERNEL = re.compile(
    rb"Hardware Error\]|\bmce: |\bEDAC |Kernel panic - |kernel BUG at |LOCKUP|lockup - CPU|"
    rb"\bINFO: task \S{1,80}:\d{1,10} blocked for more than |: [0-9a-f]{4,16} \[#\d|\bOops\b.{0,80}\[#\d|"
    rb"\bBUG: (?:unable to handle|kernel NULL)|\bgeneral protection fault, probably |"
    rb"\bUnable to handle kernel |\bMemory failure: 0x|\bCPU\d{1,5}: failed to come online"
)
"""Pattern of the words that only the kernel uses for :data:`_PLAIN_WORDS`."""


def _read_xid(line: bytes) -> str | None:
    """Return the code for the severity of an XID (with or without the driver's prefix) or SXid, or None."""
    if (at := line.find(b"SXid (")) >= 0:
        event = read_kernel_line(_text(line[at:]))
        return _kernel_code(event) if event is not None else "xid_unknown"
    if (at := line.find(b"Xid (")) >= 0:
        event = read_kernel_line(f"NVRM: {_text(line[at:])}")
        return _XID_CODES.get(event.verdict, "xid") if event is not None else "xid_unknown"
    match = _BARE_XID.search(line)
    if match is None or int(match[1]) == 0 or _NO_XID.search(line[: match.start()]):
        return None
    return _XID_CODES.get(verdict_of(int(match[1]), _text(line)), "xid")


def _read_kernel(line: bytes) -> str | None:
    """Return the code of a kernel's line about a fault, or None."""
    event = read_kernel_line(_text(line))
    if event is None or event.kind in _IGNORED_KINDS:
        return None
    # Programs use the same words. Only lines of the kernel also match this pattern.
    if event.kind in _PLAIN_WORDS and not _OF_KERNEL.search(line):
        return None
    return _kernel_code(event)


def _read_logged(line: bytes) -> str | None:
    """Return the code of a kernel's line as dmesg, journalctl, syslog, wall or a console print it, or None.

    As in the nightly check of nodes, an error that no rule reads counts, unless it is known to be harmless.
    """
    found = logged_part(_text(line))
    if found is None:
        return None
    text, is_certain = found
    event = read_kernel_line(text)
    if event is None and is_certain and not _is_link_of_start(text):
        event = read_unknown_line(text, level_is_error(text))
    return None if event is None or event.kind in _OF_PROGRAMS else _kernel_code(event)


def _is_link_of_start(text: str) -> bool:
    """Return whether a line is about a network port's link while the machine started, which is no fault."""
    return read_link_change(text) is not None and BootClock().seconds_after_boot(text) <= START_S


def _kernel_code(event: KernelEvent) -> str:
    return _KERNEL_CODES.get(event.verdict, "kernel_fault_mild")


def _text(line: bytes) -> str:
    return line[:2000].decode("utf-8", "replace")


_NAMED = re.compile(rb"(?<![`'\"\w])(?:CUDA_ERROR_|cudaError|hipError)([A-Z]\w{2,60})")
"""Pattern of the name of an error: ILLEGAL_ADDRESS in ``CUDA_ERROR_ILLEGAL_ADDRESS``. The sets below have
such names in lower case, without underscores."""
_NO_FAULT = frozenset(
    b"success notready notsupported peeraccessalreadyenabled peeraccessnotenabled "
    b"hostmemoryalreadyregistered hostmemorynotregistered deinitialized cudartunloading string name".split()
)
"""Names of errors after which programs continue. The last two are of functions, as in cudaErrorString."""
_OUT_OF_MEMORY_NAMES = frozenset({b"outofmemory", b"memoryallocation"})
_GPU_ERROR_NAMES = frozenset(
    b"illegaladdress launchfailed launchfailure launchtimeout eccuncorrectable eccnotcorrectable unknown "
    b"nvlinkuncorrectable hardwarestackerror illegalinstruction invalidpc misalignedaddress "
    b"invalidaddressspace assert systemnotready deviceunavailable devicesunavailable mapfailed contained "
    b"externaldevice mpsrpcfailure timeout".split()
)


def _read_named_error(line: bytes) -> str | None:
    """Return the code for a CUDA or HIP error that a line gives by name, or None."""
    names = [match[1].replace(b"_", b"").lower() for match in _NAMED.finditer(line)]
    # With "out of memory" in the line, _read_memory gives the code.
    if any(name in _GPU_ERROR_NAMES for name in names):
        return "gpu_error"
    if any(name in _OUT_OF_MEMORY_NAMES for name in names):
        return None if b"ut of memory" in line else "out_of_memory"
    return "gpu_error_unclear" if any(name not in _NO_FAULT for name in names) else None


def _read_memory(line: bytes) -> str | None:
    """Return the code of a line about memory that ran out, or None for a retry of TensorFlow."""
    return None if _SOFT_MEMORY.search(line) else "out_of_memory"


def _denies(line: bytes, sentence: re.Match[bytes]) -> bool:
    """Return whether the words around a sentence about a NaN show that there was none."""
    before = line[: sentence.start()]
    return _NO_NAN.search(before) is not None or _NAN_COUNT.match(line, sentence.end()) is not None


def _read_loss(line: bytes) -> str | None:
    """Return the code of a loss or a gradient that is infinite or no number, or None.

    An accuracy that is no number has its own code, because it shows that there were no examples.
    """
    if _NAN_STEPS.search(line):
        return "nan"
    sentence = _NAN_SENTENCE.search(line)
    if sentence is not None and not _denies(line, sentence):
        return "nan"
    for match in _NAN_WORD.finditer(line):
        if b"nan" in match[0].lower() or not _BEST_SO_FAR.search(line[: match.start()]):
            return "nan"
    if _NAN_ACCURACY.search(line):
        return "no_examples"
    return "nan_gradient" if _NAN_GRADIENT.search(line) else None


def _read_cache(line: bytes) -> str | None:
    """Return the code of a page cache that was not cleared, or None."""
    # sysctl prints "drop_caches = 3" after success.
    worked = b"drop_caches = " in line
    return "cache_clear_failed" if not worked and _CACHE_FAILED.search(line) else None


_Reader = Callable[[bytes], str | None]
"""A function from a line to the code of its fault, or None."""


def _reader_of_rule(rule: _Rule) -> _Reader:
    def read(line: bytes) -> str | None:
        # `_read_xid` reads lines with an XID more precisely.
        is_xid = rule.code == "gpu_lost" and b"Xid (" in line
        return rule.code if not is_xid and rule.pattern.search(line) else None

    return read


_READERS: tuple[tuple[bytes, _Reader], ...] = (
    *((b"|".join(rule.triggers), _reader_of_rule(rule)) for rule in _RULES),
    (b"Traceback (most recent", lambda _line: "traceback"),
    (b"ut of memory", _read_memory),
    (b"nan|NaN|NAN|Nan", _read_loss),
    (b"inf|Inf", _read_loss),
    (b"finite|erminating training", _read_loss),
    (b": error: ", lambda _line: None),  # only a trigger: read_fault gives these lines to _read_slurm
    (b"drop_caches", _read_cache),
    (b"Xid |Xid:|Xid=|XID |XID:|XID=", _read_xid),
    (b"CUDA_ERROR_|cudaError|hipError", _read_named_error),
    (
        b"Hardware Error]|NVRM: |EDAC |amdgpu|mlx5_core|Kernel panic|Bus Error: sev|"
        b"-fs error|I/O error|lockup - CPU|LOCKUP|error cqe|error_cqe|blocked for more|"
        # These texts are also in lines without a time, as `dmesg -t` and `journalctl -o cat` print them.
        b"atal) error|DPC: |pciehp|nvme nvme|edium error|et error|emounting filesystem|XFS (|I/O Error|"
        b"Disk failure|megaraid|sas_cm|bnxt_en|nable to handle|kernel BUG|kernel NULL|"
        b"emory failure|failed with error|recovery failed| failing I/O|BTRFS error|; giving up|"
        b"failed to come online|[#0",
        _read_kernel,
    ),
    (b"|".join((*STAMPS, b"kernel:", b" kernel - ")), _read_logged),
)
_READER_OF_RULE = {rule.code: _reader_of_rule(rule) for rule in _RULES}
_CERTAIN: Mapping[str, tuple[str, tuple[_Reader, ...]]] = {
    "gpu_error_unclear": ("gpu_error", (_READER_OF_RULE["gpu_error"], _read_named_error)),
    "io_unclear": ("io_error", (_READER_OF_RULE["io_error"],)),
}
"""For each code of a doubtful fault, the code of a certain fault of the same part, which replaces it, and the
readers that find the latter."""
_SHARED = (
    *(b"error", b"xid", b"abort", b"fatal", b"atchdog", b"lockup", b"device handle", b"hip", b" signal"),
    *(b" fail", b"corrupt", b"assert", b"llegal ", b"imed out", b"exited ", b"erminat", b"restart"),
)
"""Lower-case parts of several triggers. A block is searched once for each part, not once for each trigger."""


def _searched(trigger: bytes) -> bytes:
    """Return the lower-case text that a block is searched for instead of a trigger."""
    if trigger in SHAPES:
        return trigger
    return next((text for text in _SHARED if text in trigger.lower()), trigger.lower())


@dataclass(frozen=True)
class _Triggered:
    """A reader, with its triggers that contain one searched text.

    Most triggers begin or end with that text, so one comparison at its place shows whether the line has any
    of them.
    """

    read: _Reader
    ends: tuple[bytes, ...]
    """Triggers that end with the text."""
    begins: tuple[bytes, ...]
    """Triggers that begin with the text."""
    others: tuple[bytes, ...]
    """Triggers that have the text in the middle."""

    def is_in(self, head: bytes, rest: bytes, line: bytes) -> bool:
        """Return whether a line has a trigger at the place of the text.

        Args:
            head: The line up to the end of the text.
            rest: The line from the beginning of the text on.
            line: The line.
        """
        return (
            head.endswith(self.ends)
            or rest.startswith(self.begins)
            or any(trigger in line for trigger in self.others)
        )


def _readers() -> dict[bytes, list[_Triggered]]:
    """Return the readers with their triggers, by the text that is searched for instead of the triggers."""
    readers: dict[bytes, list[_Triggered]] = {}
    for triggers, read in _READERS:
        of_text: dict[bytes, list[bytes]] = {}
        for trigger in triggers.split(b"|"):
            of_text.setdefault(_searched(trigger), []).append(trigger)
        for text, alike in of_text.items():
            ends = [trigger for trigger in alike if trigger.lower().endswith(text)]
            # The line has other digits than the trigger. That the text was found is enough.
            begins = [
                b"" if trigger in SHAPES else trigger for trigger in alike if trigger.lower().startswith(text)
            ]
            others = [trigger for trigger in alike if trigger not in ends + begins]
            triggered = _Triggered(read, tuple(ends), tuple(begins), tuple(others))
            readers.setdefault(text, []).append(triggered)
    return readers


_READERS_OF = _readers()
SEARCHED: tuple[bytes, ...] = tuple(sorted(_READERS_OF))
"""The lower-case texts that a block is searched for. Every line of a fault contains one of them."""


def _as_certain(code: str, line: bytes) -> str:
    """Return the code of a line's fault, or the code of a certain fault of the same part in the line.

    Different texts of the line may show the two faults, and a line reports only one of them.
    """
    certain, readers = _CERTAIN.get(code, (code, ()))
    return certain if any(read(line) == certain for read in readers) else code


@lru_cache(maxsize=512)
def read_fault(word: bytes, before: bytes, after: bytes) -> tuple[str, ...]:
    """Return the codes of the faults that a line reports, given one of the texts found in it.

    Only the rules with a trigger that contains this text are tried. The caller passes each text of the line.

    Args:
        word: The entry of :data:`SEARCHED` with which ``after`` begins, ignoring case.
        before: The part of the line before that text.
        after: The rest of the line, from that text on.

    The results are cached, because in published logs, seven of ten of these texts are in repeated lines.
    The rules read only 200 bytes before the text and 400 bytes from it on.
    """
    head, rest = before[-200:] + after[: len(word)], after[:400]
    line = before[-200:] + rest
    # If a line is an error from Slurm itself, no other rule is tried.
    slurm = _read_slurm(line) if b": error: " in line else None
    found = (reader for reader in _READERS_OF[word] if reader.is_in(head, rest, line))
    codes = [slurm] if slurm is not None else [reader.read(line) for reader in found]
    faults = dict.fromkeys(_as_certain(code, line) for code in codes if code is not None)
    return () if faults and (_ECHO.match(before) or _HARMLESS.search(line)) else tuple(faults)
