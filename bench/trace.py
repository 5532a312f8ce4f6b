"""Where two engines part: the first place in a forward at which the rows that they noted differ.

    arm.call("trace")                      from now on every forward is noted
    arm.call("reset"), arm.call("extend", [...])
    print(first_difference(arm.call("noted"), other.call("noted")))

Works between any two arms of one size: stock and patched, off and a mode, one run and the next. A place that one arm
holds whole on every rank and the other as shards is compared by the rows of the chunk.
"""

import numpy
import torch

from bench.checksum import row_checksums

Noted = list[list[tuple[str, numpy.ndarray | None]]]
"""By rank: what `rank.Rank.noted` returns."""


def note_forwards(model, notes: list) -> list:
    """Append (place, row checksums) to `notes` as `model`, a DeepseekV4Model, runs; the handles that end it.

    Whole rows: the embedding, what enters attention and the MoE, the Engram's output; a rank that holds a shard of them
    notes its shard. Of every row the rank's part: the output of its heads and of its experts. None stands for a
    placeholder, an input of which only its projection was gathered.
    """

    def note(site, value):
        if isinstance(value, (tuple, list)):
            value = next((v for v in value if torch.is_tensor(v)), None)
        real = torch.is_tensor(value) and not (value.shape[0] > 1 and value.stride(0) == 0)
        notes.append((site, row_checksums(value) if real else None))

    def entering(module, site, argument=None):
        return module.register_forward_pre_hook(
            lambda _, args, kwargs: note(site, kwargs[argument] if argument in kwargs else args[0]), with_kwargs=True
        )

    def leaving(module, site):
        return module.register_forward_hook(lambda _, args, output: note(site, output))

    handles = [leaving(model.embed_tokens, "embedding")]
    for number, layer in enumerate(model.layers):
        handles += [
            entering(layer.self_attn, f"layer {number} attention input", "x"),
            entering(layer.self_attn.wo_b, f"layer {number} output of the rank's heads", "input_"),
            entering(layer.mlp, f"layer {number} MoE input", "hidden_states"),
            leaving(layer.mlp.experts, f"layer {number} output of the rank's experts"),
        ]
        if layer.engram is not None:
            handles.append(leaving(layer.engram, f"layer {number} Engram output"))
    return handles


def parts_of(one: list[numpy.ndarray], other: list[numpy.ndarray]):
    """One place's checksums by rank on two arms, as comparable pairs: (which rows, checksums, the other's)."""
    rows = len(one[0]), len(other[0])
    if rows[0] == rows[1]:
        return [(f"rank {r}", a, b) for r, (a, b) in enumerate(zip(one, other, strict=True))]
    whole = max(rows)
    return [("the shards", *(s[0] if len(s[0]) == whole else numpy.concatenate(s)[:whole] for s in (one, other)))]


def first_difference(one: Noted, other: Noted) -> str:
    """One sentence. Places where either arm noted no rows (a placeholder) are passed over."""
    forward = -1
    for steps in zip(zip(*one, strict=True), zip(*other, strict=True), strict=False):
        sites = {site for step in steps for site, _ in step}
        forward += "embedding" in sites
        if len(sites) > 1:
            return f"forward {forward}: the arms run different parts: {', '.join(sorted(sites))}"
        sums = [[s for _, s in step] for step in steps]
        if any(s is None for step in sums for s in step):
            continue
        for where, a, b in parts_of(*sums):
            rows = numpy.flatnonzero(a != b) if len(a) == len(b) else None
            if rows is None or len(rows):
                what = f"{len(a)} against {len(b)} rows" if rows is None else f"{len(rows)} of {len(a)} rows differ"
                first = "" if rows is None else f", first row {rows[0]}"
                return f"forward {forward}, {sites.pop()}, {where}: {what}{first}"
    return "what entered attention and the MoE is equal everywhere: the difference arises elsewhere"
