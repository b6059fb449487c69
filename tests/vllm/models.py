"""Tiny models with random weights, made where the tests run: an MLA + MoE one, and a Llama.

Random, not dummy: with dummy weights every token has the same logits, and nothing would show.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 512
_COMMON = {
    "vocab_size": VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
MODELS: dict[str, dict[str, Any]] = {
    "tiny-llama": {
        **_COMMON,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    "tiny-mla": {
        **_COMMON,
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "torch_dtype": "bfloat16",
        "num_key_value_heads": 4,
        "moe_intermediate_size": 64,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "q_lora_rank": 128,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "n_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "attention_bias": False,
        "ep_size": 1,
        "seq_aux": True,
    },
}
_SPREAD = 0.08


def make(name: str, folder: Path) -> Path:
    """The model's folder, made if it is not there: configuration, tokenizer, weights."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    place = folder / name
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(MODELS[name]))
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<s>", "</s>", "<pad>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(["a few words of no meaning " * 20], trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(place)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(place)
    model = AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, MODELS[name]["torch_dtype"])
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, _SPREAD)
    model.save_pretrained(place, safe_serialization=True)
    (place / "config.json").write_text(json.dumps(MODELS[name]))
    return place
