"""Golden training cases computed by Hugging Face's own models, one a family.

  python3 gen_hf.py --out .        (torch 2, transformers 5)

The files, the training loop and the limits are gen.py's; only the model is transformers'. AdamW's eps is
1e-6: the gradient of a key's bias at a slow rotary frequency is zero but for rounding, and at 1e-8 its update
would be the sign of that rounding.
"""
import argparse

import torch
import transformers

import gen
import ref_llama as R

BASE = {"hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "vocab_size": 131, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32, "rope_theta": 1000.0}
CASES = [
    ("hf_llama3", 201, {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_parameters": LLAMA3,
                        "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("hf_llama2", 202, {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "head_dim": 12,
                        "rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("hf_mistral", 203, {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "head_dim": 8,
                         "rope_theta": 10000.0, "sliding_window": 24}),
    ("hf_qwen2", 204, {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True,
                       "rope_theta": 1000000.0, "use_sliding_window": False, "sliding_window": 4, "max_window_layers": 2}),
    ("hf_qwen3", 205, {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16,
                       "rope_theta": 1000000.0, "use_sliding_window": False, "attention_bias": False}),
]


class Logits(torch.nn.Module):
    """A transformers model that takes ids and gives logits, under its own parameter names."""

    def __init__(self, config):
        super().__init__()
        settings = {k: v for k, v in config.items() if k != "model_type"}
        made = transformers.AutoConfig.for_model(config["model_type"], **settings)
        made._attn_implementation = "eager"
        self.model = transformers.AutoModelForCausalLM.from_config(made)

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False).logits

    def named_parameters(self, *args, **kwargs):
        return self.model.named_parameters(*args, **kwargs)


def build(config, dtype=torch.float32):
    return Logits(config).to(dtype)


def arrays_for(config, seed):
    """As ref_llama.init_arrays, with larger biases and norms, so that none can be forgotten."""
    rs = gen.np.random.RandomState(seed)
    shapes = {n: tuple(p.shape) for n, p in build(config).named_parameters()}
    out = {}
    for name in sorted(shapes):
        z = rs.standard_normal(shapes[name])
        out[name] = (1.0 + 0.2 * z if "norm" in name else 0.08 * z).astype(gen.np.float32)
    return out


def case_arrays(spec):
    tr = dict(gen.TRAIN_DEFAULTS)
    tr.update(spec["train"])
    arrays = arrays_for(spec["config"], spec["seed"])
    tokens = gen.make_tokens(tr["steps"] * tr["batch_size"] * tr["seq_len"] + 1, spec["config"]["vocab_size"],
                             spec["seed"] + 1000)
    return spec["config"], tr, arrays, tokens, None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    gen.setup()
    R.build_model = build
    gen.case_arrays = case_arrays
    for name, seed, more in CASES:
        spec = {"name": name, "seed": seed, "config": {**BASE, **more}, "train": {"batch_size": 4, "seq_len": 24, "eps": 1e-6}}
        e = gen.make_case(spec, args.out)
        print(name, "%d parameters" % e["num_parameters"], "loss %.6f -> %.6f" % (e["loss"][0], e["loss"][-1]),
              e["observed_difference"]["f32_vs_f64"])


if __name__ == "__main__":
    main()
