"""The chunks that every equality is proven on, by world size."""

from dataclasses import replace

from model import BatchSpec, ModelSpec

STANDARD = ModelSpec()
NO_TAIL = replace(STANDARD, tail_rows=0)
SHORT_TAIL = replace(STANDARD, tail_rows=8)
VISION = replace(STANDARD, vision=True)


def remainders(world: int) -> dict[str, tuple[ModelSpec, BatchSpec]]:
    """Rows that divide over the ranks, and every way in which they do not."""
    even = 264
    assert even % world == 0
    chunks = {f"{even}+{more} rows": (STANDARD, BatchSpec((even + more,))) for more in range(world)}
    shard = {2: 1, 3: 2, 4: 3, 8: 3}[world]
    own_only_padding = shard * world - (shard if world < 8 else 2 * shard + 1)
    chunks[f"{own_only_padding} rows, the last rank owns padding only"] = (
        STANDARD,
        BatchSpec((own_only_padding,)),
    )
    return chunks


def batches(world: int) -> dict[str, tuple[ModelSpec, BatchSpec]]:
    """Requests, tails, prefixes, readers and model shapes."""
    # 40 rows a rank: the first request's tail and three whole requests are the last rank's.
    one_owner = (40 * world - 24, 8, 8, 8)
    return {
        "many requests": (STANDARD, BatchSpec((200, 50, 130, 7, 1))),
        "requests shorter than the tail": (STANDARD, BatchSpec((100, 60, 127, 30))),
        "one short tail": (SHORT_TAIL, BatchSpec((401,))),
        "short tails on every rank": (SHORT_TAIL, BatchSpec((101, 99, 100, 102))),
        "every tail on one other rank": (replace(SHORT_TAIL, tail_rows=16), BatchSpec(one_owner)),
        "prefix hits": (STANDARD, BatchSpec((150, 121), prefix=(77, 40))),
        "no tail": (NO_TAIL, BatchSpec((150, 121))),
        "draft, tail": (SHORT_TAIL, BatchSpec((150, 121), draft_layers=(1, 3, 5))),
        "draft, no tail": (NO_TAIL, BatchSpec((150, 121), draft_layers=(0, 2, 5))),
        "images": (VISION, BatchSpec((150, 121), images=(31, 202))),
        "every hidden state": (SHORT_TAIL, BatchSpec((150, 121), hidden_states="full")),
        "prompt logprobs": (SHORT_TAIL, BatchSpec((150, 121), logprob_starts=(150, 20))),
        "rows bounded": (SHORT_TAIL, BatchSpec((150, 121), bounded=True)),
        "two Engrams": (replace(STANDARD, engram_layers=(0, 3)), BatchSpec((271,))),
        "no Engram": (replace(STANDARD, engram_layers=()), BatchSpec((271,))),
        "an Engram table split within columns": (replace(STANDARD, engram_heads=5), BatchSpec((271,))),
        "sm100": (replace(STANDARD, platform="sm100"), BatchSpec((271,))),
        "sm120": (replace(STANDARD, platform="sm120"), BatchSpec((271,))),
    }


def chunks(world: int) -> dict[str, tuple[ModelSpec, BatchSpec]]:
    return remainders(world) | batches(world)
