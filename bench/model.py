"""A DeepSeek-V4.1-shaped model directory without weights: configuration and tokenizer.

Widths are the released model's, so the engine picks the kernels that it picks there. Layers, experts, vocabulary and
the Engram table are cut. Half the layers run on every row; the rest run after the late-layer start. Load it with
`--load-format dummy`.
"""

import json
import pathlib
from types import SimpleNamespace

RELEASED_DENSE = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "scale_fmt": "ue8m0",
    "weight_block_size": [32, 32],
}
"""Dense weights as released: e4m3 in blocks of 32 x 32 with power-of-two scales. The routed experts are MXFP4."""


def write(folder, *, layers: int = 8, experts: int = 32, vocab: int = 8192, quantized: bool = False) -> pathlib.Path:
    """Write the directory and return it. `layers` is even and at least 6; the Engram is layer 1.

    The tokenizer comes first: the Engram's hash constants follow from how many token texts remain after upstream's
    normalization. Needs an importable engine, no GPU.
    """
    from sglang.srt.layers.engram import EngramLayout, build_compressed_token_map
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if layers < 6 or layers % 2:
        raise ValueError(f"layers must be even and at least 6, got {layers}")
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocab)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="t0", unk_token="t0", eos_token="t1", pad_token="t2"
    )
    tokenizer.save_pretrained(str(folder))

    late = layers // 2
    engram = {
        "engram_layer_ids": [1],
        "engram_max_ngram_size": 4,
        "engram_n_heads": 8,
        "engram_head_dim": 256,
        "engram_vocab_size": 65536,
        "engram_num_embeddings": [0],
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": build_compressed_token_map(tokenizer)[1],
    }
    engram["engram_num_embeddings"] = [EngramLayout.from_config(SimpleNamespace(**engram)).column_bounds(0)[-1]]
    attention = {
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1280,
        "o_lora_rank": 1024,
        "o_groups": 8,
        "sliding_window": 128,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "compress_ratios": [0, 0, *[2] * (late - 2), *[1] * late, 0, 0, 0],
        "kv_source_layer_ids": [2, late],
        "index_source_layer_ids": [2, late, late + 2],
        "candidate_source_layer_id": late,
        "candidate_topk_blocks": 2048,
        "candidate_block_size": 8,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 512,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "max_position_embeddings": 1 << 20,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
    }
    experts_of = {
        "n_routed_experts": experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 2304,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
    }
    residual = {"hidden_size": 5120, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-20}
    draft = {
        "num_nextn_predict_layers": 3,
        "dspark_block_size": 5,
        "dspark_markov_rank": 256,
        "dspark_n_routed_experts": 128,
        "dspark_noise_token_id": 3,
        "dspark_num_experts_per_tok": 3,
        "dspark_target_layer_ids": [],
    }
    text = {
        "model_type": "deepseek_v41_text",
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "use_cache": True,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        **residual,
        **attention,
        **experts_of,
        **engram,
        **draft,
    }
    config = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": 4,
        "text_config": text,
    }
    if quantized:
        config["quantization_config"] = RELEASED_DENSE
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder
