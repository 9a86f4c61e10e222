"""The category of a kernel by words in its name: an ordered list of patterns, of which the first that matches decides.

Names nest: PyTorch's elementwise_kernel holds the functor that distinguishes a copy from an addition, and a name such
as nll_loss_forward_reduce has words of several categories. So words that settle the category come before words that
only suggest it, and generic templates (elementwise, reduce) come last. Patterns are matched in lower case.
"""

from __future__ import annotations

import re

CATEGORIES = (
    "gemm",  # matrix products, with their split-K reductions, and matrix-vector products
    "convolution",
    "attention",  # fused attention, with its helpers
    "normalisation",  # batch, layer, group, RMS
    "softmax_loss",
    "elementwise",  # pointwise arithmetic, activations, dropout and random numbers, (de)quantisation, rotary embedding
    "reduction",  # sums, norms, scans
    "indexing",  # embedding, gather, scatter, sort, top-k, routing to experts
    "pooling",  # pooling and resampling
    "optimizer",
    "memory",  # copies, casts, fills, transposes and concatenations done by kernels
    "communication",
    "other",
)

COLLECTIVES = (
    ("all_reduce", re.compile(r"all_?reduce|cross_device_reduce")),
    ("all_gather", re.compile(r"all_?gather")),
    ("reduce_scatter", re.compile(r"reduce_?scatter")),
    ("all_to_all", re.compile(r"all_?to_?all|deep_ep::\w+::(dispatch|combine)")),
    ("broadcast", re.compile(r"broadcast")),
    ("send_recv", re.compile(r"send_?recv")),
    ("reduce", re.compile(r"nccl(sym)?(dev)?kernel_reduce_")),
)

_NORMALISATION = (
    r"layer_?norm|rms_?norm|group_?norm|batch_?norm|instance_?norm|\bbn_(fw|bw)_|\bln_(fwd|bwd)|fused_ln\b|"
    r"gammabeta|rowwisemoments|computeinternalgradients|compute(backward)?fusedparams"
)
_SOFTMAX_LOSS = (
    r"softmax|nll_?loss|cross_?entropy|mse_(kernel|loss)|smooth_l1|huber|kl_?div|_jsd_|ctc_loss|binary_cross|"
    r"loss_(forward|backward)"
)
_RULES = tuple(
    (category, re.compile(pattern))
    for category, pattern in (
        (
            "communication",
            r"nccl(sym)?(dev)?kernel|rccl|msccl|nvshmem|cross_device_reduce|(one|two)_shot_all_reduce|multimem_all_|"
            r"allreduce|deep_ep::|userbuffers_",
        ),
        ("optimizer", r"adam|sgd(math)?functor|lamb(?!da)|adagrad|novograd|koptimizer|kprecondition"),
        # The vector products of BLAS carry cublasGemvTensor in their template, but are reductions.
        ("reduction", r"\bdot_kernel<|reduce_1block_kernel<"),
        ("memory", r"nchwtonhwc|nhwctonchw|chunk_cat|split_with_sizes"),
        # flashinfer keeps norms, activations and sampling in its namespace: the word flash alone says nothing.
        ("normalisation", r"flashinfer::norm|qk_?norm"),
        ("softmax_loss", r"attn_softmax"),
        (
            "attention",
            r"flash::|flash_(fwd|bwd|attn)|flash_?attn|flash_?attention|fmha|sdpa|attention|"
            r"(?<![a-z])attn(?![a-z])|attn_(fwd|bwd)|flash_mla|cudnn::fusion::|batchprefill|batchdecode|"
            r"bwd_kernel_d(k_dv|q)\b",
        ),
        ("memory", r"tensortransformgeneric|converttensor|batched_transpose"),
        (
            "convolution",
            r"conv(?!er)|fprop|dgrad|wgrad|winograd|implicit_gemm|im2col|col2im|igemm_(fwd|bwd|wrw)|"
            r"(\d|[sh])cudnn_|cudnn_\d+x\d+|cudnn::cnn::",
        ),
        (
            "gemm",
            r"gemm|gemv|nvjet_|splitk_?reduce|cutlass\w*_(tensorop|simt|bstensorop)|xmma_|matmul|cijk_|trsm|marlin|"
            r"\bbmm_|_mm_kernel|grouped_mm|scaled_mm|wvsplitk|llmm1|deep_gemm|fused_moe_kernel",
        ),
        ("normalisation", _NORMALISATION),
        ("softmax_loss", _SOFTMAX_LOSS),
        ("pooling", r"pool|upsample|interpolat|grid_sampl"),
        ("elementwise", r"rotary|\brope\b|_rope|apply_rope"),
        (
            "indexing",
            r"embedding|index_?(select|put|add|copy|fill|kernel|elementwise)|index_?func|gather|scatter|"
            r"sort|topk|top_k|unique|deviceselect|devicerunlength|histogram|krn_partial|"
            r"sum_and_scatter|compute_grad_weight|compute_num_of_partial|compute_cuda_kernel|nonzero|moe_(align|permute|"
            r"unpermute)|searchsorted",
        ),
        (
            "memory",
            r"copy_kernel|copyfunctor|native::copy<|copybuffer|fillfunctor|fillbuffer|memset|memcpy|catarray|"
            r"transpose|_pad\d?d?_|pad_kernel|roll_cuda|flip_(cuda_)?kernel|reshape_and_cache",
        ),
        ("reduction", r"lpnorm|l2norm|maxnorm"),
        (
            "elementwise",
            r"elementwise|multi_tensor_apply|dropout|philox|distribution_|curand|quantiz|swiglu|geglu|silu|gelu|"
            r"relu|act_and_mul|triu_tril|bias_add|add_bias|residual_add|element_mul|tensorop|optensor|scalepackedtensor|"
            r"transformer_engine\S*cast|arange|linspace",
        ),
        ("reduction", r"reduce|cumsum|cumprod|_scan_|devicescan|segment_|norm_kernel|amax"),
    )
)

_LAMBDA = re.compile(r"lambda\(([^()]*)\)")
_PARENTHESES = re.compile(r"\([^()]*\)")
_INDUCTOR = re.compile(r"^triton_(poi|red|per|for|tem|mm|bmm|spl|flex)(_|$)")
_INDUCTOR_RULES = (
    ("attention", re.compile(r"flex_(attention|decoding)")),
    ("softmax_loss", re.compile(_SOFTMAX_LOSS)),
    # Inductor takes RMS norm apart, and what is left of it are its operators.
    ("normalisation", re.compile(f"{_NORMALISATION}|mean.*pow.*rsqrt|native_layer_norm")),
)


def bare_name(name: str) -> str:
    """A kernel's name without function parameters, which repeat the template or hold scalars (double alpha).

    The parameters of a lambda stay, in brackets: they are what the kernel computes on.
    """
    name = _LAMBDA.sub(r"lambda[\1]", name)
    while name != (shorter := _PARENTHESES.sub(" ", name)):
        name = shorter
    return name


def category(name: str) -> str:
    """The category of a kernel of this bare name, one of CATEGORIES."""
    name = name.lower()
    inductor = _INDUCTOR.match(name)
    if inductor:
        return _inductor_category(name, inductor[1])
    return next((kind for kind, pattern in _RULES if pattern.search(name)), "other")


def collective(name: str) -> str | None:
    """The collective that a communication kernel of this bare name runs."""
    name = name.lower()
    return next((kind for kind, pattern in COLLECTIVES if pattern.search(name)), None)


def _inductor_category(name: str, form: str) -> str:
    """Inductor names a kernel by its form (pointwise, reduction, template) and then the operators fused into it.

    The form decides: a pointwise kernel that lists native_layer_norm only applies its weights. A foreach kernel (for)
    is pointwise too.
    """
    if form in ("mm", "bmm"):
        return "gemm"
    if form in ("poi", "for"):
        return "elementwise"
    if form in ("tem", "flex"):
        if "flex" in name:
            return "attention"
        return "convolution" if "convolution" in name and "mm" not in name else "gemm"
    return next((kind for kind, pattern in _INDUCTOR_RULES if pattern.search(name)), "reduction")
