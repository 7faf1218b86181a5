"""Write a LoRA adapter with random weights for a tiny llama, without peft.

usage: make_lora.py MODEL OUT [SEED]
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file

model, out = sys.argv[1], sys.argv[2]
torch.manual_seed(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
os.makedirs(out, exist_ok=True)
config = json.load(open(model + "/config.json"))
rank = 8
hidden = config["hidden_size"]
outputs = {"q_proj": config["num_attention_heads"] * config["head_dim"], "v_proj": config["num_key_value_heads"] * config["head_dim"]}
weights = {}
for layer in range(config["num_hidden_layers"]):
    for name, size in outputs.items():
        prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
        weights[prefix + ".lora_A.weight"] = (torch.randn(rank, hidden) * 0.05).bfloat16()
        weights[prefix + ".lora_B.weight"] = (torch.randn(size, rank) * 0.05).bfloat16()
save_file(weights, out + "/adapter_model.safetensors")
json.dump({
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": model, "r": rank, "lora_alpha": 16,
    "lora_dropout": 0.0, "bias": "none", "target_modules": list(outputs), "fan_in_fan_out": False, "inference_mode": True,
    "modules_to_save": None, "layers_to_transform": None, "use_rslora": False, "use_dora": False,
}, open(out + "/adapter_config.json", "w"), indent=1)
