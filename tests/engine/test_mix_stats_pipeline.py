"""Promise: the mix stats' split-K kernel, as it is launched on Hopper, overwrites no operand that a dot still reads.

Needs no GPU: the kernel is compiled for SM90 with the launch's own parameters, and the compiler's intermediate form
says how many shared-memory slots each operand of its asynchronous dots has. On a GPU, tests/gpu/test_mix_stats.py sees
the fault itself.
"""

import re

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

WIDTH, MIX = 4 * 5120, 24
POINTERS = ("X", "W_HI", "W_MID", "W_LO", "MIX", "SQ")
SLOTS = re.compile(r"ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x\d+x\d+xbf16")
PENDING = re.compile(r"warp_group_dot_wait .*pendings = (\d+)")


class Launches:
    """Stands where a Triton kernel stands, and keeps what it would have been launched with."""

    def __init__(self):
        self.options = []

    def __getitem__(self, grid):
        return lambda *args, **options: self.options.append(options)


def launch_options(monkeypatch, rows):
    """The keyword arguments with which the engine launches the split-K kernel for `rows` rows on SM90."""
    from sglang.kernels.ops.layernorm import mhc
    from sglang.srt.runtime_context import override_platform

    kernel, launches = mhc._hc_mix_stats_bf16x3_kernel, Launches()
    monkeypatch.setattr(mhc, "_hc_mix_stats_bf16x3_kernel", launches)
    monkeypatch.setattr(mhc, "_hc_mix_reduce_sinkhorn_kernel", Launches())
    x = torch.zeros(rows, WIDTH, dtype=torch.bfloat16)
    parts = [torch.zeros(MIX, WIDTH, dtype=torch.bfloat16)] * 3
    with override_platform(is_sm90=True):
        mhc.hc_mix_stats_sinkhorn_bf16x3(x, parts, torch.zeros(3), torch.zeros(MIX), 20, 1e-20, 1e-6)
    (options,) = launches.options
    return kernel, options


def compiled(kernel, options):
    """The kernel's TTGIR for SM90."""
    constants = {name: value for name, value in options.items() if name.isupper()}
    signature = {
        **dict.fromkeys(POINTERS[:4], "*bf16"),
        **dict.fromkeys(POINTERS[4:], "*fp32"),
        "M": "i32",
        **dict.fromkeys(constants, "constexpr"),
    }
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(POINTERS))}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    launch = {name: options[name] for name in ("num_warps", "num_stages")}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=launch).asm["ttgir"]


def races(ttgir):
    """Whether dots stay in flight across iterations while some operand has fewer slots than another."""
    slots = [int(n) for n in SLOTS.findall(ttgir)]
    in_flight = any(int(n) > 0 for n in PENDING.findall(ttgir))
    return in_flight and len(set(slots)) > 1


@pytest.mark.parametrize("rows", (32, 128, 2048, 4095, 4096, 16384))
def test_no_operand_is_overwritten_while_it_is_read(monkeypatch, rows):
    kernel, options = launch_options(monkeypatch, rows)
    ttgir = compiled(kernel, options)
    assert "warp_group_dot" in ttgir, "not compiled to asynchronous dots: this test sees nothing"
    assert not races(ttgir)


def test_control_the_check_sees_the_fault(monkeypatch):
    """Upstream's launch, three stages and none of the series' switches: two slots for x, three for each weight part.
    Passes once Triton's pipeline gives x its slot."""
    kernel, options = launch_options(monkeypatch, 2048)
    switches = [name for name, value in options.items() if isinstance(value, bool)]
    ttgir = compiled(kernel, {**options, **dict.fromkeys(switches, False), "BLOCK_M": 64, "num_stages": 3})
    if not races(ttgir):
        pytest.skip(f"Triton {triton.__version__} gives every operand its slots: the mix-stats patch can be dropped")
