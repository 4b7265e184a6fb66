"""Compile CUDA kernels without a compiler on the node, with PyTorch's NVRTC and the driver.

probe_sdc.py compiles sdc_kernels.cu with a :class:`Compiler`, and starts its kernels on a GPU through
:class:`Kernels`.
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
"""Compiler options. Products and sums are not contracted, because the source states which operations are
fused."""
_PLACES = ("nvidia/cu*/lib", "nvidia/cuda_nvrtc/lib", "torch/lib")
"""Places of the library in the wheels of PyTorch and of NVRTC, below a folder of packages."""


class CudaError(Exception):
    """A failure of NVRTC or the driver, with its own message."""


def nvrtc_names(cuda: str) -> list[str]:
    """Return the possible places of NVRTC, which are PyTorch, the wheels and a toolkit.

    Args:
        cuda: The CUDA version of PyTorch, such as ``13.0``.
    """
    major = cuda.split(".")[0]
    # libnvrtc-builtins, which it loads itself, and .alt are next to it.
    patterns = [f"{folder}/{subfolder}/libnvrtc*.so.{major}*" for folder in sys.path for subfolder in _PLACES]
    paths = [name for pattern in patterns for name in sorted(glob.glob(pattern))]
    own = [name for name in paths if "builtins" not in name and ".alt." not in name]
    return [f"libnvrtc.so.{major}", *own, "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"]


def load_nvrtc(cuda: str) -> ctypes.CDLL:
    """Return NVRTC.

    Raises:
        CudaError: NVRTC cannot be loaded from any of the places.
    """
    names = nvrtc_names(cuda)
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaError(f"no NVRTC: none of {', '.join(names)} can be loaded")


class Compiler:
    """Compile the kernels for one compute capability.

    Args:
        cuda: The CUDA version of PyTorch.
        source: The source of the kernels.
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
            text = self.library.nvrtcGetErrorString
            text.restype = ctypes.c_char_p
            raise CudaError(f"{name}: {text(status).decode(errors='replace')}")

    def compile(self, capability: tuple[int, int]) -> bytes:
        """Return machine code for a compute capability.

        Raises:
            CudaError: NVRTC refuses the source. The text gives the first lines of its log.
        """
        # On 9.0, the products of warp groups need the name sm_90a.
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
        CudaError: The driver does not take the code.
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
            raise CudaError(f"{name}: {(text.value or b'unknown').decode(errors='replace')}")

    def has(self, name: str) -> bool:
        """Return whether there is such a kernel."""
        try:
            self.function(name)
        except CudaError:
            return False
        return True

    def function(self, name: str) -> ctypes.c_void_p:
        """Return a kernel.

        Raises:
            CudaError: There is no function of the name.
        """
        if name not in self._functions:
            function = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
            self._functions[name] = function
        return self._functions[name]

    def blocks_per_sm(self, name: str, threads: int) -> int:
        """Return how many blocks of a kernel an SM holds at once."""
        blocks = ctypes.c_int()
        name_of = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self._call(name_of, ctypes.byref(blocks), self.function(name), threads, ctypes.c_size_t(0))
        return blocks.value

    def launch(self, name: str, blocks: int, threads: int, stream: int, *values: Any) -> None:
        """Queue a kernel on a stream.

        Args:
            name: The name of the kernel.
            blocks: The number of blocks.
            threads: The number of threads in each block.
            stream: The handle of the stream.
            values: Its arguments, each with a type of ctypes.
        """
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        grid = (blocks, 1, 1, threads, 1, 1)
        self._call("cuLaunchKernel", self.function(name), *grid, 0, ctypes.c_void_p(stream), pointers, None)
