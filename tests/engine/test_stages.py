"""Promise: a hyper-connection stage declares a sharded chunk in the boundary's words, and binds it when asked."""

import pytest
from model import ModelSpec, build_model, machine
from ranks import run_ranks

SHARDED, OFF = ModelSpec(mode="sharded"), ModelSpec(mode="off")


def declared(rank, world, spec):
    """{stage: (source axes, compute axes, returned == source, group)} of layer 0, and the bound variants."""
    from sglang.srt.layers.layer_boundary.contracts import BatchVariant

    with machine(spec, spec.mode):
        layer = build_model(spec).layers[0]
    found = {}
    for name, boundary in (("attention", layer.attn_boundary), ("ffn", layer.ffn_boundary)):
        variants = {variant.name for variant in boundary.plan.paths}
        rows = boundary.declaration.row_transport.rows.get(BatchVariant.SEQUENCE_PARALLEL)
        found[name] = (
            variants,
            rows
            and (
                sorted(axis.name for axis in rows.source.sharded),
                sorted(axis.name for axis in rows.compute.sharded),
                rows.returned == rows.source,
                rows.group,
            ),
        )
    return found


@pytest.mark.parametrize("stage", ("attention", "ffn"))
def test_a_sharded_chunk_is_declared_and_bound(stage):
    for found in run_ranks(2, declared, SHARDED):
        variants, rows = found[stage]
        assert variants == {"ORDINARY", "SEQUENCE_PARALLEL"}
        assert rows == (["ATTN_TP"], [], True, None), "compute sees every row and completes its own sum"


def test_off_binds_nothing():
    for found in run_ranks(2, declared, OFF):
        assert all(variants == {"ORDINARY"} and rows is None for variants, rows in found.values())


def chosen(rank, world):
    """The variant of one batch with and without the plan of a sharded chunk, and with transport's."""
    from model import BatchSpec, make_batch
    from sglang.srt.layers.prefill_sp import PrefillSp
    from sglang.srt.layers.row_shards import RowShards
    from sglang.srt.runtime_context import get_forward

    batch = make_batch(BatchSpec((300,)))
    with machine(SHARDED, SHARDED.mode):
        plan = build_model(SHARDED).layers[0].attn_boundary.plan
        names = []
        for sp in (None, PrefillSp(RowShards(300, world, rank), True), PrefillSp(RowShards(300, world, rank), False)):
            with get_forward().scoped(prefill_sp=sp):
                names.append(plan.variant_for(batch).name)
    return names


def test_the_chunks_plan_chooses_the_variant():
    assert run_ranks(2, chosen) == [["ORDINARY", "SEQUENCE_PARALLEL", "ORDINARY"]] * 2
