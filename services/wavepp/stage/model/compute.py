"""Which arithmetic this machine is good at, and the settings of the process that follow from it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

import torch

from wavepp.stage.model.errors import ModelError

DTYPES: Final = {
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp32": torch.float32,
    "float32": torch.float32,
}

# From glibc's malloc.h; 32 MiB is the largest threshold that it takes.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3


@dataclass(frozen=True, slots=True)
class Compute:
    """dtype: of weights, activations and cache. amx: whether the CPU has matrix tiles (they change which kernels
    are best, and what "medium" precision means)."""

    dtype: torch.dtype
    amx: bool

    @property
    def dtype_name(self) -> str:
        return dtype_name(self.dtype)


def dtype_name(dtype: torch.dtype) -> str:
    """As it is written in frames and facts: "float32", "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def choose_compute(dtype: str) -> Compute:
    """`dtype`: "auto", "bf16" or "fp32". Auto is bf16 only where the CPU computes in it: elsewhere torch emulates
    it, several times slower than fp32. Raises ModelError."""
    amx = bool(torch.cpu._is_amx_tile_supported())
    if dtype == "auto":
        native = amx or bool(torch.cpu._is_avx512_bf16_supported())
        return Compute(torch.bfloat16 if native else torch.float32, amx)
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not supported; choose auto, bf16 or fp32")
    return Compute(DTYPES[dtype], amx)


def configure_process(compute: Compute, threads: int, precision: str = "auto") -> None:
    """Set torch's threads and fp32 precision for this process.

    precision "auto": "medium" sends fp32 products to oneDNN, twice as fast as MKL on AMD and still true fp32, but
    with matrix tiles it would round to bf16, so there it is "highest".
    """
    if precision == "auto":
        precision = "highest" if compute.amx else "medium"
    torch.set_float32_matmul_precision(precision)
    torch.set_num_threads(threads)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Tell glibc to keep what a step frees, instead of unmapping it and faulting it in again at the next operation.

    Measured: element-wise operations on a chunk of 512 tokens take half the time. What is kept is bounded by what
    the largest wave needs. Another C library does without.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in ((_M_MMAP_THRESHOLD, 32 << 20), (_M_TRIM_THRESHOLD, 512 << 20), (_M_TOP_PAD, 16 << 20)):
        mallopt(option, value)


def return_freed_memory() -> None:
    """Give back what loading left behind, once; afterwards what is freed is kept (see `configure_process`)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
