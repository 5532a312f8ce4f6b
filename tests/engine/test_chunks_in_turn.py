"""Promise: nothing that ran before a chunk changes it: other sizes, other modes, its prompt's earlier chunks."""

import pytest
from agreement import WORLDS, digest
from chunks import NO_TAIL, SHORT_TAIL, STANDARD
from model import BatchSpec, forward, new_backend
from ranks import collectives, run_ranks

SMALL, LARGE = BatchSpec((270,)), BatchSpec((200, 121))


def in_turn(rank, world, spec, turns):
    """[digests] of each (mode, batch), in one process."""
    return [
        {name: digest(value) for name, value in forward(spec, batch, mode).tensors().items()} for mode, batch in turns
    ]


@pytest.mark.parametrize("world", WORLDS)
def test_off_on_off(world):
    modes = ("off", "exact", "off", "sharded", "off", "transport", "off", "exact")
    for digests in run_ranks(world, in_turn, STANDARD, [(mode, SMALL) for mode in modes]):
        named = list(zip(modes, digests, strict=True))
        assert all(result == digests[0] for mode, result in named if mode in ("off", "exact"))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("mode", ("sharded", "exact"))
def test_two_sizes_in_turn(world, mode):
    """A plan, a self-check and a buffer of one size must not reach a chunk of another."""
    turns = [(mode, batch) for batch in (SMALL, LARGE, SMALL, LARGE, LARGE, SMALL)]
    reference = [("off" if mode == "exact" else "transport", batch) for batch in (SMALL, LARGE)]
    results = run_ranks(world, in_turn, SHORT_TAIL, reference + turns)
    for small, large, *others in results:
        assert others == [small, large, small, large, large, small]


PROMPT = 300 + 270 + 41
CHUNKS = [BatchSpec((300,)), BatchSpec((270,), prefix=(300,)), BatchSpec((41,), prefix=(570,))]
THRESHOLD = 128


def chunked_prompt(rank, world, spec, mode):
    """A prompt in three chunks over one cache, the last below the threshold: (digests, ran sequence-parallel) each."""
    backend = new_backend(spec, 1, PROMPT)
    results = []
    for chunk in CHUNKS:
        with collectives() as moved:
            output = forward(spec, chunk, mode, min_tokens=THRESHOLD, backend=backend)
        named = {name: digest(value) for name, value in output.tensors().items()}
        results.append((named, any(operation != "all_reduce" for operation, _, _ in moved)))
    return results


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("spec", (SHORT_TAIL, NO_TAIL), ids=("tail", "no tail"))
def test_a_long_prompt_in_chunks(world, spec):
    runs = {mode: run_ranks(world, chunked_prompt, spec, mode) for mode in ("off", "exact", "sharded", "transport")}
    for rank in range(world):
        digests = {mode: [named for named, _ in by_rank[rank]] for mode, by_rank in runs.items()}
        assert digests["exact"] == digests["off"]
        assert digests["sharded"] == digests["transport"]
        for mode, by_rank in runs.items():
            entered = [ran for _, ran in by_rank[rank]]
            assert entered == ([False] * 3 if mode == "off" else [True, True, False])
