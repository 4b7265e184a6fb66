"""Compile CUDA kernels with NVRTC, and start them with the CUDA driver.

The node needs no CUDA toolkit, because PyTorch contains NVRTC. SDC is silent data corruption: wrong results
without an error. probe_sdc.py compiles sdc_kernels.cu with a :class:`Compiler`, and starts its kernels on a
GPU through :class:`Kernels`.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import sys
from pathlib import Path
from typing import Any

import sdc_paths

SOURCE = Path(__file__).resolve().with_name("sdc_kernels.cu")
OPTIONS = ("--fmad=false", f"-DSTEPS={sdc_paths.STEPS}")
"""Compiler options. ``--fmad=false`` stops the compiler from fusing products and sums, because the source
states which operations are fused."""
_LIBRARY_PATTERNS = ("nvidia/cu*/lib", "nvidia/cuda_nvrtc/lib", "torch/lib")
"""Places of the library in the wheels of PyTorch and of NVRTC, below a folder of packages."""


class CudaError(Exception):
    """A failure of NVRTC or of the driver. The text has its message."""


def nvrtc_names(cuda: str) -> list[str]:
    """Return file names of NVRTC in the order in which they are tried.

    They are the system's library of this major version, the libraries in the wheels of PyTorch and NVRTC, the
    system's library of any version, and the default path of a CUDA toolkit.

    Args:
        cuda: The CUDA version of PyTorch, such as ``13.0``.
    """
    major = cuda.split(".")[0]
    # The same folder has libnvrtc-builtins, which NVRTC loads itself, and a variant .alt.
    patterns = [
        f"{folder}/{subfolder}/libnvrtc*.so.{major}*"
        for folder in sys.path
        for subfolder in _LIBRARY_PATTERNS
    ]
    paths = [name for pattern in patterns for name in sorted(glob.glob(pattern))]
    own = [name for name in paths if "builtins" not in name and ".alt." not in name]
    return [f"libnvrtc.so.{major}", *own, "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"]


def load_nvrtc(cuda: str) -> ctypes.CDLL:
    """Return the NVRTC library, loaded from the first place that has it.

    Raises:
        CudaError: NVRTC cannot be loaded from any of the places.
    """
    names = nvrtc_names(cuda)
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaError(
        f"NVRTC was not found (tried: {', '.join(names)}). Install the wheel nvidia-cuda-nvrtc, or a "
        "PyTorch that contains NVRTC"
    )


class Compiler:
    """A compiler of the kernels.

    Args:
        cuda: The CUDA version of PyTorch.
        source: The source of the kernels.

    Attributes:
        software: The digest of source and options, with the version of NVRTC.
    """

    def __init__(self, cuda: str, source: str) -> None:
        self.library, self.source = load_nvrtc(cuda), source
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        digest = hashlib.sha256("\n".join((source, *OPTIONS)).encode()).hexdigest()
        self.software = f"{digest[:16]}-nvrtc{major.value}.{minor.value}"

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            describe = self.library.nvrtcGetErrorString
            describe.restype = ctypes.c_char_p
            raise CudaError(f"{name}: {describe(status).decode(errors='replace')}")

    def compile(self, capability: tuple[int, int]) -> bytes:
        """Return machine code for a compute capability.

        Raises:
            CudaError: NVRTC refuses the source. The text has the first 400 characters of its log.
        """
        # For compute capability 9.0, instructions for products of warp groups (wgmma) need the target sm_90a.
        name = "sm_{}{}".format(*capability) + ("a" if capability == (9, 0) else "")
        program = ctypes.c_void_p()
        text = self.source.encode()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text, b"sdc_kernels.cu", 0, None, None)
        options = [f"--gpu-architecture={name}".encode(), *(option.encode() for option in OPTIONS)]
        try:
            self._call(
                "nvrtcCompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*options)
            )
        except CudaError as error:
            raise CudaError(f"{error}: {self._log(program)}") from error
        size = ctypes.c_size_t()
        self._call("nvrtcGetCUBINSize", program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        self._call("nvrtcGetCUBIN", program, code)
        self._call("nvrtcDestroyProgram", ctypes.byref(program))
        return code.raw

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._call("nvrtcGetProgramLogSize", program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self._call("nvrtcGetProgramLog", program, log)
        return " ".join(log.value.decode(errors="replace").split())[:400]


class Kernels:
    """The kernels in the current CUDA context.

    Raises:
        CudaError: The driver cannot load the machine code.
    """

    def __init__(self, code: bytes) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self._code = code
        self._module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self._module), code)
        self._functions: dict[str, ctypes.c_void_p] = {}

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.driver, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(status, ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or f'error {status}'.encode()).decode(errors='replace')}")

    def has(self, name: str) -> bool:
        """Return whether the driver finds a kernel of this name in the code."""
        try:
            self.function(name)
        except CudaError:
            return False
        return True

    def function(self, name: str) -> ctypes.c_void_p:
        """Return a kernel.

        Raises:
            CudaError: The driver finds no function of this name.
        """
        if name not in self._functions:
            function = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
            self._functions[name] = function
        return self._functions[name]

    def blocks_per_sm(self, name: str, threads: int) -> int:
        """Return how many blocks of a kernel an SM holds at once."""
        blocks = ctypes.c_int()
        driver_function = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self._call(driver_function, ctypes.byref(blocks), self.function(name), threads, ctypes.c_size_t(0))
        return blocks.value

    def launch(self, name: str, blocks: int, threads: int, stream: int, *values: Any) -> None:
        """Queue a kernel on a stream.

        Args:
            name: The name of the kernel.
            blocks: The number of blocks.
            threads: The number of threads in each block.
            stream: The handle of the stream.
            values: The arguments of the kernel, as values of ctypes.
        """
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        grid = (blocks, 1, 1, threads, 1, 1)
        self._call("cuLaunchKernel", self.function(name), *grid, 0, ctypes.c_void_p(stream), pointers, None)
