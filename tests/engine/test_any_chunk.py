"""Promise: exact == off, sharded == transport and, at two ranks, sharded == off, for chunks that nobody thought of."""

from dataclasses import replace

from agreement import WORLDS, assert_ranks_agree, assert_same, results
from chunks import STANDARD
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model import BatchSpec


@st.composite
def drawn_chunks(draw):
    """A world size, a model and a batch of at most 320 rows."""
    world = draw(st.sampled_from(WORLDS))
    lens = draw(st.lists(st.integers(1, 64) | st.just(1) | st.integers(65, 160), min_size=1, max_size=6))
    while sum(lens) > 320:
        lens.pop()
    lens = tuple(lens) or (draw(st.integers(1, 320)),)
    prefix = draw(st.just(()) | st.tuples(*[st.integers(0, 90)] * len(lens)))
    layers = draw(st.none() | st.sets(st.integers(0, 5), min_size=1, max_size=3).map(sorted).map(tuple))
    spec = replace(
        STANDARD,
        tail_rows=draw(st.sampled_from((0, 1, 8, 31, 128))),
        platform=draw(st.sampled_from(("sm90", "sm120"))),
    )
    return world, spec, BatchSpec(lens, prefix=prefix, draft_layers=layers, seed=draw(st.integers(0, 3)))


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(drawn_chunks())
def test_any_chunk(chunk):
    world, spec, batch = chunk
    by_rank = results(world, spec, batch)
    assert_same(by_rank, "exact", "off")
    assert_same(by_rank, "sharded", "transport")
    assert_ranks_agree(by_rank, "sharded")
    if world == 2:
        assert_same(by_rank, "sharded", "off")
