"""Reading the text of a compiled module."""

import pytest

from torch_tpu.aot import hlo, kernels
from torch_tpu.aot.chips import topology

KERNEL = """HloModule m, is_scheduled=true

ENTRY %main (a: bf16[8,128]) -> bf16[8,128] {
  %a = bf16[8,128]{1,0} parameter(0)
  %k.1 = (bf16[8,128]{1,0}, f32[8,128]{1,0}) custom-call(%a), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 1024}"
}}, metadata={op_name="jit(f)/attend/pallas_call"}, backend_config={"used_scoped_memory_configs":[{"memory_space":"1","offset":"0","size":"4096"}]}
  %out = bf16[8,128]{1,0} get-tuple-element(%k.1), index=0
  ROOT %sum = bf16[8,128]{1,0} all-reduce(%out), replica_groups={{0,1}}, to_apply=%add
}, execution_thread="main"

%after (b: f32[]) -> f32[] {
  ROOT %b = f32[] parameter(0)
}
"""  # noqa: E501


def test_metadata_of_a_kernel_over_several_lines():
    """A bracket at the start of a line there does not end the computation."""
    module = hlo.Module(KERNEL)
    assert [c.opcode for c in module.costs()] == ["custom-call", "all-reduce"] and "after" in module.computations
    (kernel,) = kernels.compiled(module, (), topology("v6e-1").chip)
    assert (kernel.name, kernel.vmem_bytes) == ("attend", 4096)


FUSED_KERNEL = """HloModule m, is_scheduled=true

%fused_computation.10.clone.1 (param_0: bf16[2,8,128], param_1: s32[], param_2: bf16[8,128]) -> bf16[2,8,128] {
  %param_0 = bf16[2,8,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %param_1 = s32[]{:T(128)S(6)} parameter(1)
  %param_2 = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(2)
  %splash.9 = bf16[8,128]{1,0:T(8,128)(2,1)} custom-call(%param_2), custom_call_target="tpu_custom_call", metadata={op_name="jit(f)/splash_mha_dkv_no_residuals/pallas_call"}, backend_config={"custom_call_config":{"body":"AA","cost_estimate":{"flops":"3000"}}}
  %bitcast.141 = bf16[1,8,128]{2,1,0:T(8,128)(2,1)} bitcast(%splash.9)
  %constant.271 = s32[]{:T(128)} constant(0)
  ROOT %update = bf16[2,8,128]{2,1,0:T(8,128)(2,1)} dynamic-update-slice(%param_0, %bitcast.141, %param_1, %constant.271, /*index=3*/%constant.271)
}

ENTRY %main (a: bf16[2,8,128], i: s32[], x: bf16[8,128]) -> bf16[2,8,128] {
  %a = bf16[2,8,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %i = s32[]{:T(128)} parameter(1)
  %x = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(2)
  ROOT %splash.10 = bf16[2,8,128]{2,1,0:T(8,128)(2,1)} fusion(%a, %i, %x), kind=kCustom, calls=%fused_computation.10.clone.1, metadata={op_name="jit(f)/splash_mha_dkv_no_residuals/pallas_call"}, backend_config={"used_scoped_memory_configs":[{"memory_space":"1","offset":"0","size":"8192"}]}
}
"""  # noqa: E501


def test_a_kernel_within_a_fusion():
    """libtpu's form of a kernel in a loop, whose result is one part of an array: the fusion has the memory."""
    (kernel,) = kernels.compiled(hlo.Module(FUSED_KERNEL), (), topology("v6e-1").chip)
    assert (kernel.name, kernel.count, kernel.vmem_bytes) == ("splash_mha_dkv_no_residuals", 1, 8192)
    (cost,) = hlo.Module(FUSED_KERNEL).costs()
    assert (cost.flops, cost.dtype) == (3000, "bf16") and cost.label.startswith("kernel splash_mha_dkv_no_residuals")
    assert cost.hbm_bytes == 2 * 8 * 128 * 2 + 4  # the operand, the part that is written, the index


MODULE = """HloModule m, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias), {2}: (0, {}, must-alias) }

%fused (p0: bf16[4,8,2048,64], p1: bf16[4,8,1,64], p2: s32[]) -> bf16[4,8,2048,64] {
  %p0 = bf16[4,8,2048,64]{3,2,1,0:T(8,128)} parameter(0)
  %p1 = bf16[4,8,1,64]{3,2,1,0} parameter(1)
  %p2 = s32[]{:T(128)} parameter(2)
  %c = s32[] constant(0)
  ROOT %dus = bf16[4,8,2048,64]{3,2,1,0} dynamic-update-slice(%p0, %p1, %c, %c, %p2, /*index=5*/%c)
}

%product (q0: bf16[512,1024], q1: bf16[256,1024]) -> f32[512,256] {
  %q0 = bf16[512,1024]{1,0} parameter(0)
  %q1 = bf16[256,1024]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %conv = f32[512,256]{1,0} convolution(%q0, %q1), dim_labels=bf_oi->bf
}

%body (b: (s32[], f32[128])) -> (s32[], f32[128]) {
  %b = (s32[]{:T(128)}, f32[128]{0}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %x = f32[128]{0} get-tuple-element(%b), index=1
  %y = f32[128]{0} add(%x, %x)
  ROOT %t = (s32[], f32[128]{0}) tuple(%i, %y)
}

ENTRY %main (a: bf16[4,8,2048,64], n: bf16[4,8,1,64], i: s32[], l: bf16[512,1024], r: bf16[256,1024]) -> f32[512,256] {
  %a = bf16[4,8,2048,64]{3,2,1,0} parameter(0)
  %n = bf16[4,8,1,64]{3,2,1,0} parameter(1)
  %i = s32[] parameter(2)
  %l = bf16[512,1024]{1,0} parameter(3)
  %r = bf16[256,1024]{1,0} parameter(4)
  %start = (bf16[256,1024]{1,0:S(1)}, bf16[256,1024]{1,0}, u32[]{:S(2)}) copy-start(%r)
  %update = bf16[4,8,2048,64]{3,2,1,0} fusion(%a, %n, %i), kind=kLoop, calls=%fused
  %done = bf16[256,1024]{1,0:T(8,128)(2,1)S(1)} copy-done(%start)
  %state = (s32[], f32[128]{0}) tuple(%i, %i)
  %loop = (s32[], f32[128]{0}) while(%state), condition=%body, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  ROOT %out = f32[512,256]{1,0} fusion(%l, %done), kind=kOutput, calls=%product
}
"""


@pytest.fixture(scope="module")
def module():
    return hlo.Module(MODULE)


def test_aliases(module):
    assert module.aliases() == {0: 1, 2: 0}


def test_an_update_in_place_moves_the_part(module):
    update = next(c for c in module.costs() if c.name == "update")
    part = 4 * 8 * 64 * 2
    assert update.hbm_bytes == part + part + 4  # the part read, the part written, the index


def test_a_product_with_a_prefetched_operand(module):
    out = next(c for c in module.costs() if c.name == "out")
    assert out.flops == 2 * 512 * 1024 * 256
    assert out.hbm_bytes == 2 * 512 * 1024 + 2 * 256 * 1024 + 4 * 512 * 256
    assert out.dtype == "bf16" and out.label == "bf16[512,1024] x bf16[256,1024] -> f32[512,256]"


def test_a_loop_counts_as_often_as_it_runs(module):
    assert sum(c.times * c.hbm_bytes for c in module.costs() if c.opcode == "add") == 2 * 3 * (3 * 128 * 4)


def test_a_batched_product_as_a_dilated_convolution():
    """XLA:TPU's form of 8 products of 16x32 and 32x64: seven of eight windows are gaps."""
    line = (
        "%c = f32[8,16,64]{2,1,0} convolution(%a, %b), "
        "window={size=8 stride=7 pad=0_0 lhs_dilate=8}, dim_labels=0bf_0io->0bf"
    )
    left, right = hlo.Array("bf16", (8, 16, 32), True), hlo.Array("bf16", (8, 32, 64), True)
    assert hlo.convolution_flops(hlo._instruction(line), left, right) == 2 * 8 * 16 * 32 * 64


def test_a_padded_convolution():
    """3x3 over 4x4 with padding 1: (4 + 3 + 3)^2 multiplications a channel pair, not 9 * 16."""
    line = "%c = f32[1,4,4,5]{3,2,1,0} convolution(%a, %b), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
    left, right = hlo.Array("f32", (1, 4, 4, 2), True), hlo.Array("f32", (3, 3, 2, 5), True)
    assert hlo.convolution_flops(hlo._instruction(line), left, right) == 2 * 2 * 5 * 10**2


@pytest.mark.parametrize(
    ("groups", "ranks"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4), ("[2,4]<=[8]", 4), ("mesh['axis_0'=1,'axis_1'=8] {'axis_1'}", 8), ("{}", 0),
        ("mesh['a'=2,'b'=4] {'a','b'}", 8),
    ],
)  # fmt: skip
def test_groups_of_a_collective(groups, ranks):
    text = f"""HloModule m

ENTRY %main (p: f32[8,16]) -> f32[8,16] {{
  %p = f32[8,16]{{1,0}} parameter(0)
  ROOT %all-reduce = f32[8,16]{{1,0}} all-reduce(%p), channel_id=1, replica_groups={groups}, to_apply=%add
}}
"""
    (cost,) = [c for c in hlo.Module(text).costs() if c.ici_bytes]
    assert cost.ranks == ranks
    assert cost.ici_bytes == (8 * 16 * 4 * 2 * (ranks - 1) // ranks if ranks else 8 * 16 * 4)
