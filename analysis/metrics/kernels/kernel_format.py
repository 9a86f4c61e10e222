"""The number format in a kernel's name, and whether it multiplies on tensor cores.

Each library spells the format of its matrix kernels in another code; here is a rule for each. Other kernels are
templates that name their C++ types. All functions take bare names (kernel_rules.bare_name).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

Format: TypeAlias = tuple[str | None, bool | None]
"""Precision and whether on tensor cores; None where the name does not say."""

# The narrowest type is the data: what is wider beside it accumulates.
_ELEMENT = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("fp8", r"float8|e4m3|e5m2|fp8|f8_fnuz|f8_ocp"),
        ("bf16", r"bfloat16|bf16|bhalf"),
        ("fp16", r"(?<![a-z])half(?![a-z])|_float16|fp16|(?<![a-z0-9])f16(?![0-9])"),
        ("fp32", r"\bfloat\b|fp32|(?<![a-z0-9])f32(?![0-9])"),
        ("fp64", r"\bdouble\b|fp64|(?<![a-z0-9])f64(?![0-9])"),
    )
)

_CODES = {
    "bf16": "bf16", "fp16": "fp16", "f16": "fp16", "tf32": "tf32", "f32": "fp32", "f64": "fp64",
    "e4m3": "fp8", "e5m2": "fp8", "i8": "int8", "s8": "int8",
}  # fmt: skip
_CODE = "bf16|fp16|f16|tf32|f32|f64|e4m3|e5m2|i8|s8"
_XMMA = re.compile(rf"xmma_.*?_(?:{_CODE}|i32)(?:{_CODE}|i32)_({_CODE})(?:{_CODE}|i32)_")
_NVJET = re.compile(r"nvjet_(?:sm\d+_)?([a-z]+)_(tf32)?")
_MMA = re.compile(
    r"_([hsdi])(884|1688|16816|161616|16832|\d+x\d+x\d+)(?:fast)?(tf32|bf16|f16)?(?:gemm|cudnn|fprop|dgrad|wgrad)"
)
_NARROW = re.compile(r"[_<](bf16|fp16|f16|tf32|e4m3|e5m2|s8|i8)(?=_)")
_SIMT = re.compile(r"(?:^|_)([hsdcz])(?:gemm|cudnn)")
_TENSILE = re.compile(r"Cijk_[A-Za-z]+_[A-Za-z]+_(F8|B8|I8|S_MX|[BHSDCZ])")
_MEMORY_EFFICIENT = re.compile(r"fmha_cutlass[FB]_(bf16|f16|f32)_\w*sm(\d+)")
_GTCX = re.compile(r"igemm_(?:fwd|bwd|wrw)_gtcx\d*_\w*?_(bf16|fp16|fp32)")

_NVJET_INPUTS = {"t": "bf16", "h": "fp16", "q": "fp8"}
_MMA_INPUTS = {"h": "fp16", "d": "fp64", "s1688": "tf32", "s884": "fp16"}
_LETTERS = {"h": "fp16", "s": "fp32", "d": "fp64", "c": "fp32", "z": "fp64"}
_TENSILE_INPUTS = {
    "F8": "fp8", "B8": "fp8", "I8": "int8", "B": "bf16", "H": "fp16", "S_MX": "tf32",
    "S": "fp32", "D": "fp64", "C": "fp32", "Z": "fp64",
}  # fmt: skip

_NO_TENSOR_CORES = re.compile(
    r"(?i)splitK_?reduce|gemv|gemmSN|gemmk1|gemm_4bit|depthwise|convolve_sgemm|grouped_direct|reduce_wgrad|naive_conv|"
    r"im2col|col2im|winograd_nonfused|cudnn::fusion::|dot_do_o|convert_dq|clear_dkvaccum|splitkv_combine|"
    r"prepare_varlen|BwdPreprocess|BwdPostprocess|FwdCombine|[dw]grad(2d)?(_alg\d)?_engine|convolve_common_engine|"
    r"_float_engine|_ffma_"
)
_TENSOR_CORES = re.compile(
    r"(?i)flash_(fwd|bwd)|FlashAttn(Fwd|Bwd)|sdpa_\w*wg?mma|xdl|wmma|tensorop|aiter::fmha_|Fmha(Fwd|Bwd)\w*Kernel|"
    r"FlashAttention(Forward|Backward)Sm|flash_attncuteflash_|deep_gemm::|MainloopSm\d+Tma"
)


def element_format(name: str) -> str | None:
    """The format of a templated kernel's data: the narrowest floating type in its name; None where it has none."""
    name = name.lower()
    found = next((kind for kind, pattern in _ELEMENT if pattern.search(name)), None)
    # Composable Kernel keeps bf16 as unsigned short.
    return "bf16" if found in ("fp32", None) and re.search(r"\bck(_tile)?::.*unsigned short", name) else found


def reduction_format(name: str) -> str | None:
    """The format in which a collective adds up; None for one that only moves bytes, whatever type its name holds."""
    if not re.match(r"nccl", name):
        return element_format(name)
    adds = re.search(r"(AllReduce|ReduceScatter|Kernel_Reduce)_", name)
    return element_format(name.replace("_", " ")) if adds else None


def matrix_format(name: str) -> Format:
    """The inputs' format of a matrix product, convolution or attention, and whether it runs on tensor cores."""
    for pattern, format_of in _FORMATS:
        if found := pattern.search(name):
            return format_of(found)
    if _NO_TENSOR_CORES.search(name):
        return element_format(name), False
    tensor_cores = True if _TENSOR_CORES.search(name) else None
    if "sdpa" in name:  # cuDNN's attention writes f16 for bf16 as well
        return None, tensor_cores
    return (_first_format if "flash" in name.lower() else element_format)(name), tensor_cores


def _first_format(name: str) -> str | None:
    """The type named first: FlashAttention names its inputs first and may name another type for an output."""
    found = [(match.start(), kind) for kind, pattern in _ELEMENT if (match := pattern.search(name.lower()))]
    return min(found)[1] if found else None


def _nvjet(found: re.Match[str]) -> Format:
    """cuBLAS on Hopper and later: letters of A and B (one if they are the same), compute type, C, and D.

    t is bf16, h fp16 and q fp8: seen in runs of these types. Other letters stay unknown, but for s with tf32, which is
    fp32 multiplied as TF32.
    """
    return "tf32" if found[2] else _NVJET_INPUTS.get(found[1][0]), True


def _xmma(found: re.Match[str]) -> Format:
    """cuBLAS's and cuDNN's xmma: types as stored, then type multiplied and accumulator; ffma is fp32 without tensor
    cores."""
    return _CODES[found[1]], not re.search(r"_ffma_|_simt_|_dfma_", found.string)


def _mma(found: re.Match[str]) -> Format:
    """CUTLASS and cuBLAS that name the MMA shape: accumulator, shape (16816), and types about it.

    Where no type is named, the shape may imply it: fp32 data in s1688 is multiplied as TF32.
    """
    narrow = _NARROW.search(found.string)
    code = found[3] or (narrow and narrow[1])
    precision = _CODES[code] if code else _MMA_INPUTS.get(found[1] + found[2]) or _MMA_INPUTS.get(found[1])
    return precision, True


def _simt(found: re.Match[str]) -> Format:
    """BLAS's letter before gemm (sgemm), or cuDNN's (scudnn): no tensor cores."""
    return element_format(found.string) or _LETTERS[found[1]], False


def _tensile(found: re.Match[str]) -> Format:
    """rocBLAS and hipBLASLt: the letters after the index names are the types of A and B, C and compute (BBS, F8BS);
    MI is the matrix instruction."""
    return _TENSILE_INPUTS[found[1]], True if re.search(r"_MI\d+x\d+", found.string) else None


def _gtcx(found: re.Match[str]) -> Format:
    """MIOpen's implicit GEMM; the x is for XDLOPS, AMD's matrix cores."""
    return found[1], True


def _memory_efficient(found: re.Match[str]) -> Format:
    """PyTorch's memory-efficient attention: tensor cores from sm70 on, for fp32 (as fast TF32) from sm80 on."""
    return _CODES[found[1]], int(found[2]) >= (80 if found[1] == "f32" else 70)


_FORMATS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Format]], ...] = (
    (_NVJET, _nvjet), (_XMMA, _xmma), (_MMA, _mma), (_SIMT, _simt), (_TENSILE, _tensile), (_GTCX, _gtcx),
    (_MEMORY_EFFICIENT, _memory_efficient),
)  # fmt: skip
"""What is known of the libraries' matrix kernels: of the first pattern that a name has."""
