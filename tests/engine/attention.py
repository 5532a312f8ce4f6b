"""A stand-in for the attention kernels: causal, per request, dependent on positions.

It has the part of ``DeepseekV4AttnBackend`` that the model calls. Every row's output
depends on the rows before it in its own request: on a window of their keys, on the
compressed keys of the layer's source (written for every row, also where the layer
itself runs on tail rows only), and on the request's cached prefix. Everything it
receives is recorded, so that a test can compare it over all rows.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

WINDOW = 8


@dataclass
class Rows:
    """The rows of one call: each row's request, position and cache slot."""

    request: torch.Tensor
    position: torch.Tensor
    slot: torch.Tensor
    floor: torch.Tensor
    """[T] the first position a row's window may read."""


@dataclass
class Recorded:
    """What the model handed the backend, in order."""

    source_x: list[torch.Tensor] = field(default_factory=list)
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    """(what, layer, rows)"""


class StandInBackend:
    """One cache over requests 0..``requests``-1, kept from chunk to chunk.

    Args:
        config: The model's, for widths and sources.
        requests: Request slots of the cache.
        context: Positions that each of them can hold.
        device: Where the cache lives.
    """

    low_ratio_prefill_graph = False

    def __init__(self, config, requests: int, context: int, device):
        self.config = config
        slots = requests * context + 1
        self.requests, self.context = requests, context

        def cache():
            return torch.zeros(slots, config.head_dim, device=device)

        layers = range(config.num_hidden_layers)
        sources = config.kv_source_layer_ids
        self._keys = {i: cache() for i in layers}
        self._latents = {i: (cache(), cache()) for i in sources}
        self._compressed = {i: cache() for i in sources}
        self._weights: dict[int, torch.Tensor] = {}
        self.token_to_kv_pool = SimpleNamespace(
            uniform_fp8=False,
            set_swa_key_buffer_radix_fused_norm_rope=self._store_keys,
        )
        self.tail_source_kv_layer_id = None
        self.recorded = Recorded()

    # --- what the harness calls --------------------------------------------------

    def slots_of(self, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Cache slot of a request's position; 0 stays upstream's slot for padding."""
        return request * self.context + position + 1

    def prepare(self, forward_batch, tail) -> None:
        """Give one batch its cache slots and take its rows and its ``LateLayerTail``,
        or None."""
        position = forward_batch.positions.long()
        request = torch.repeat_interleave(forward_batch.req_pool_indices.long(), forward_batch.extend_seq_lens.long())
        slot = forward_batch.out_cache_loc = self.slots_of(request, position)
        self._all = self._now = Rows(request, position, slot, torch.zeros_like(position))
        self._seq_lens = forward_batch.seq_lens.long()
        self._slots_in_use = forward_batch.req_pool_indices.long()
        self.tail_forward_metadata = SimpleNamespace(late_layer_tail=tail)
        if tail is not None:
            first = torch.full((self.requests,), self.context, device=slot.device)
            taken = [tail.real_rows(t) for t in (request, position, slot)]
            first.scatter_reduce_(0, taken[0], taken[1], "amin")
            self._tail_rows = Rows(*taken, first[taken[0]])
        self.recorded = Recorded()

    def fill_prefix(self, request: int, rows: int) -> None:
        """A cached prefix of ``rows`` positions that no test computed."""
        generator = torch.Generator().manual_seed(request + 1)
        where = self.slots_of(torch.tensor(request), torch.arange(rows))
        for store in (*self._keys.values(), *self._compressed.values()):
            drawn = torch.randn(rows, store.shape[1], generator=generator)
            store[where] = drawn.to(store.device)
        for first, second in self._latents.values():
            for store in (first, second):
                drawn = torch.randn(rows, store.shape[1], generator=generator)
                store[where] = drawn.to(store.device)

    def cache_digest(self) -> list[torch.Tensor]:
        """Every cache, for comparison."""
        return [*self._keys.values(), *self._compressed.values()]

    # --- what the model calls ----------------------------------------------------

    def _store_keys(self, *, layer_id, swa_loc, kv, kv_weight, eps, freqs_cis, positions) -> None:
        self.recorded.calls.append(("keys", layer_id, kv.shape[0]))
        assert kv.shape[0] == swa_loc.shape[0] == positions.shape[0]
        kv = kv.float()
        normed = kv * torch.rsqrt(kv.square().mean(-1, keepdim=True) + eps)
        phase = positions.float().unsqueeze(-1) * 0.01
        self._keys[layer_id][swa_loc.long()] = normed * kv_weight.float() + phase.sin()

    def get_swa_out_cache_loc(self, forward_batch) -> torch.Tensor:
        return self._now.slot

    def forward_low_ratio_sources(self, *, layer, x, q_lora, positions, forward_batch, run_indexer=True) -> None:
        self.recorded.calls.append(("sources", layer.layer_id, x.shape[0]))
        rows = self._now
        assert x.shape[0] == rows.slot.shape[0] == positions.shape[0]
        layer_id = layer.layer_id
        if layer.compressor is not None and layer_id != self.tail_source_kv_layer_id:
            self._compress(layer, x, rows)
        if layer.indexer is not None and run_indexer:
            scores, _ = layer.indexer.weights_proj(x)
            queries, _ = layer.indexer.wq_b(q_lora)
            score = scores.float().mean(-1) + queries.float().mean(-1)
            self._weights[layer_id] = torch.sigmoid(score)

    def _compress(self, layer, x, rows: Rows) -> None:
        compressor, layer_id = layer.compressor, layer.layer_id
        kv, score = compressor.project(x)
        latents, scores = self._latents[layer_id]
        latents[rows.slot] = kv.float()
        done = rows.slot
        if compressor.compress_ratio == 2:
            scores[rows.slot] = score.float()
            done = rows.slot[rows.position % 2 == 1]
            pair = torch.stack([done - 1, done], dim=1)
            kv = compressor.pool_pairs(latents[pair], scores[pair])
        self._compressed[layer_id][done] = compressor.finish(kv).float()

    def write_tail_source_kv(self, *, layer, x, positions, forward_batch) -> None:
        self.recorded.source_x.append(x.clone())
        self.forward_low_ratio_sources(
            layer=layer,
            x=x,
            q_lora=None,
            positions=positions,
            forward_batch=forward_batch,
            run_indexer=False,
        )
        self.tail_source_kv_layer_id = layer.layer_id

    def enter_late_layer_tail(self, forward_batch) -> tuple:
        self._now = self._tail_rows
        return (forward_batch.num_token_non_padded,)

    def exit_late_layer_tail(self, saved, forward_batch) -> None:
        self._now = self._all
        self.tail_source_kv_layer_id = None

    def forward(self, *, q, k, v, layer, forward_batch, compress_ratio, attn_sink, **_) -> torch.Tensor:
        layer_id = layer.layer_id
        rows = self._now
        self.recorded.calls.append(("attention", layer_id, q.shape[0]))
        assert q.shape[0] == rows.slot.shape[0]
        back = torch.arange(WINDOW, device=q.device)
        position = rows.position.unsqueeze(1) - back
        visible = position >= rows.floor.unsqueeze(1)
        slot = self.slots_of(rows.request.unsqueeze(1), position.clamp_min(0))
        keys = self._keys[layer_id][slot]
        source = max(i for i in self.config.kv_source_layer_ids if i <= layer_id)
        keys = torch.cat([keys, self._mean_compressed(source, rows)], dim=1)
        visible = torch.cat([visible, visible.new_ones(len(visible), 1)], dim=1)
        query = q[:, : layer.tp_q_head_num].float()
        scores = torch.einsum("thd,tsd->ths", query, keys) * layer.scaling
        scores = scores.masked_fill(~visible.unsqueeze(1), float("-inf"))
        sink = attn_sink[: query.shape[1]].float().view(1, -1, 1)
        weights = torch.cat([scores, sink.expand(len(scores), -1, 1)], dim=-1)
        weights = weights.softmax(-1)[..., :-1]
        scale = torch.ones(weights.shape[-1], device=q.device).repeat(len(weights), 1)
        scale[:, -1] = self._weights[source]
        output = torch.einsum("ths,tsd->thd", weights, keys * scale.unsqueeze(-1))
        padded = torch.zeros_like(q)
        padded[:, : query.shape[1]] = output.to(q.dtype)
        return padded

    def _mean_compressed(self, source: int, rows: Rows) -> torch.Tensor:
        """[T, 1, D] mean of the source's latents at or before each row."""
        mean = torch.empty(len(rows.slot), 1, self.config.head_dim)
        mean = mean.to(rows.slot.device)
        ratio = self.config.compress_ratios[source]
        for request, length in zip(self._slots_in_use, self._seq_lens, strict=True):
            ends = torch.arange(ratio - 1, int(length), ratio, device=rows.slot.device)
            latents = self._compressed[source][self.slots_of(request, ends)].double()
            total = torch.cat([latents.new_zeros(1, latents.shape[1]), latents.cumsum(0)])
            mine = rows.request == request
            count = (rows.position[mine] + 1) // ratio
            sums = total[count] / count.clamp_min(1).unsqueeze(-1)
            mean[mine] = sums.float().unsqueeze(1)
        return mean
