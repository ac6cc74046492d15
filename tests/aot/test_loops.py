"""How often loops run of which the compiler does not say it."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from torch_tpu.aot import hlo
from torch_tpu.ops import checking

# libtpu's own text of ``lax.map`` with a 64-bit counter (attention of 4096 tokens), cut to its counter: two halves with
# a carry, the one that is added among the state, and one addition that stands for the work.
HALVES = """HloModule jit_call, is_scheduled=true

%region_0.10.clone.sunk (arg_tuple.1: (u32[], u32[], f32[128], u32[])) -> (u32[], u32[], f32[128], u32[]) {{
  %constant.73..sunk = u32[]{{:T(128)}} constant(1), metadata={{op_name="jit(call)" stack_frame_id=6}}
  %arg_tuple.1 = (u32[]{{:T(128)}}, u32[]{{:T(128)}}, f32[128]{{0:T(128)}}, u32[]{{:T(128)}}) parameter(0)
  %get-tuple-element.175 = u32[]{{:T(128)}} get-tuple-element(%arg_tuple.1), index=0
  %copy.14 = u32[]{{:T(128)S(6)}} copy(%get-tuple-element.175), metadata={{op_name="jit(call)/while/body/add"}}
  %add.31 = u32[]{{:T(128)}} add(%copy.14, {one}), backend_config={{"flag_configs":[]}}
  %compare.12 = pred[]{{:T(512)S(6)}} compare(%add.31, %copy.14), direction=LT, metadata={{op_name="jit(call)/while"}}
  %get-tuple-element.176 = u32[]{{:T(128)}} get-tuple-element(%arg_tuple.1), index=1
  %add.32 = u32[]{{:T(128)S(6)}} add(%get-tuple-element.176, {one}), metadata={{op_name="jit(call)/while/body/add"}}
  %select.3 = u32[]{{:T(128)}} select(%compare.12, %add.32, %get-tuple-element.176), metadata={{op_name="jit(call)"}}
  %get-tuple-element.177 = f32[128]{{0:T(128)}} get-tuple-element(%arg_tuple.1), index=2
  %work = f32[128]{{0:T(128)}} add(%get-tuple-element.177, %get-tuple-element.177)
  %get-tuple-element.192 = u32[]{{:T(128)}} get-tuple-element(%arg_tuple.1), index=3
  ROOT %tuple.42 = (u32[]{{:T(128)}}, u32[]{{:T(128)}}, f32[128]{{0:T(128)}}, u32[]{{:T(128)}}) tuple(%add.31, %select.3, %work, %get-tuple-element.192)
}}

%region_3.11.clone (arg_tuple.0: (u32[], u32[], f32[128], u32[])) -> pred[] {{
  %constant.75 = s32[]{{:T(128)}} constant(0), metadata={{op_name="jit(call)/while/cond/lt" stack_frame_id=19}}
  %constant.76 = u32[]{{:T(128)}} constant(0), metadata={{op_name="jit(call)/call_exported" stack_frame_id=6}}
  %constant.77 = u32[]{{:T(128)}} constant(16), metadata={{op_name="jit(call)/call_exported" stack_frame_id=6}}
  %arg_tuple.0 = (u32[]{{:T(128)}}, u32[]{{:T(128)}}, f32[128]{{0:T(128)}}, u32[]{{:T(128)}}) parameter(0)
  %get-tuple-element.120 = u32[]{{:T(128)}} get-tuple-element(%arg_tuple.0), index=1, metadata={{op_name="jit(call)"}}
  %bitcast-convert.12 = s32[]{{:T(128)S(6)}} bitcast-convert(%get-tuple-element.120), metadata={{op_name="jit(call)"}}
  %compare.8 = pred[]{{:T(512)S(6)}} compare(%bitcast-convert.12, %constant.75), direction=LT
  %compare.9 = pred[]{{:T(512)S(6)}} compare(%get-tuple-element.120, %constant.76), direction=EQ
  %get-tuple-element.121 = u32[]{{:T(128)}} get-tuple-element(%arg_tuple.0), index=0
  %compare.10 = pred[]{{:T(512)S(6)}} compare(%get-tuple-element.121, %constant.77), direction=LT
  %and.2 = pred[]{{:T(512)S(6)}} and(%compare.9, %compare.10), backend_config={{"flag_configs":[]}}
  ROOT %or.2 = pred[]{{:T(512)}} or(%compare.8, %and.2), metadata={{op_name="jit(call)/while/cond/lt"}}
}}

ENTRY %main (x: f32[128], n: u32[]) -> f32[128] {{
  %x = f32[128]{{0:T(128)}} parameter(0)
  %n = u32[]{{:T(128)}} parameter(1)
  %constant.15 = u32[]{{:T(128)}} constant({low})
  %constant.16 = u32[]{{:T(128)}} constant({high})
  %constant.73 = u32[]{{:T(128)}} constant(1)
  %copy.23 = u32[]{{:T(128)}} copy({start})
  %copy.11 = u32[]{{:T(128)}} copy(%constant.16), backend_config={{"flag_configs":[]}}
  %tuple.44 = (u32[]{{:T(128)}}, u32[]{{:T(128)}}, f32[128]{{0:T(128)}}, u32[]{{:T(128)}}) tuple(%copy.23, %copy.11, %x, %constant.73)
  %while.4 = (u32[]{{:T(128)}}, u32[]{{:T(128)}}, f32[128]{{0:T(128)}}, u32[]{{:T(128)}}) while(%tuple.44), condition=%region_3.11.clone, body=%region_0.10.clone.sunk, metadata={{op_name="jit(call)/while"}}
  ROOT %out = f32[128]{{0:T(128)}} get-tuple-element(%while.4), index=2
}}
"""  # noqa: E501


def _turns(text: str) -> int:
    return next(c.times for c in hlo.Module(text).costs() if c.name == "work")


@pytest.mark.parametrize("one", ["%constant.73..sunk", "%get-tuple-element.192"])
@pytest.mark.parametrize(
    ("low", "high", "turns"), [(0, 0, 16), (3, 0, 13), (2**32 - 2, 2**32 - 1, 18)], ids=["0", "3", "-2"]
)
def test_a_counter_in_two_halves(low: int, high: int, turns: int, one: str) -> None:
    """From below zero the lower half overflows, and carries into the upper one."""
    assert _turns(HALVES.format(low=low, high=high, start="%constant.15", one=one)) == turns


def test_what_depends_on_an_operand_counts_once() -> None:
    assert _turns(HALVES.format(low=0, high=0, start="%n", one="%constant.73..sunk")) == 1


def test_a_loop_that_does_not_end_counts_once() -> None:
    text = HALVES.format(low=0, high=0, start="%constant.15", one="%constant.73..sunk")
    assert (
        _turns(text.replace("constant.73..sunk = u32[]{:T(128)} constant(1)", "constant.73..sunk = u32[] constant(0)"))
        == 1
    )


FUSED = """HloModule m, is_scheduled=true

%next (p: s32[]) -> s32[] {
  %p = s32[] parameter(0)
  %two = s32[] constant(-2)
  ROOT %add.1 = s32[] add(%p, %two)
}

%more (q: s32[]) -> pred[] {
  %q = s32[] parameter(0)
  %zero = s32[] constant(0)
  ROOT %compare.1 = pred[] compare(%q, %zero), direction=GT
}

%body (b: (s32[], f32[128])) -> (s32[], f32[128]) {
  %b = (s32[], f32[128]{0}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %j = s32[] fusion(%i), kind=kLoop, calls=%next
  %x = f32[128]{0} get-tuple-element(%b), index=1
  %work = f32[128]{0} add(%x, %x)
  ROOT %t = (s32[], f32[128]{0}) tuple(%j, %work)
}

%condition (c: (s32[], f32[128])) -> pred[] {
  %c = (s32[], f32[128]{0}) parameter(0)
  %k = s32[] get-tuple-element(%c), index=0
  ROOT %go = pred[] fusion(%k), kind=kLoop, calls=%more
}

ENTRY %main (x: f32[128]) -> f32[128] {
  %x = f32[128]{0} parameter(0)
  %ten = s32[] constant(9)
  %state = (s32[], f32[128]{0}) tuple(%ten, %x)
  %loop = (s32[], f32[128]{0}) while(%state), condition=%condition, body=%body
  ROOT %out = f32[128]{0} get-tuple-element(%loop), index=1
}
"""


def test_counters_in_fusions() -> None:
    assert _turns(FUSED) == 5


@pytest.mark.parametrize("counter", [jnp.int32, jnp.int64])
def test_compiled_for_tpu(counter: type) -> None:
    """The FLOPs of 8 products, one a turn."""

    def power(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.fori_loop(counter(0), counter(8), lambda _, y: y @ w, x)

    found = checking.compiled(power, [((256, 512), jnp.bfloat16), ((512, 512), jnp.bfloat16)], "v6e")
    assert " while(" in found.text
    assert hlo.total(hlo.Module(found.text).costs(), "flops") == 8 * 2 * 256 * 512 * 512
