#!/usr/bin/env python3
"""Write a tiny multimodal model with random weights.

usage: multimodal.py TINY OUT llava|qwen2vl|gemma3

TINY is a model that make_model.py has made. The new model has TINY's tokenizer with additional image tokens, a chat template that
writes image tokens in place of images, and the family's own image processor with its default sizes.
"""
import os
import sys

import torch
from transformers import AutoTokenizer

tiny, out, kind = sys.argv[1:4]
os.makedirs(out, exist_ok=True)
SPECIALS = {
    "llava": {"image_token": "<image>"},
    "qwen2vl": {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "begin": "<|vision_start|>", "end": "<|vision_end|>"},
    "gemma3": {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"},
}[kind]
IMAGE = {"llava": "<image>\n", "qwen2vl": "<|vision_start|><|image_pad|><|vision_end|>", "gemma3": "<start_of_image>"}[kind]
TEMPLATE = """{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{%- if m['content'] is string %}{{ m['content'] }}{%- else %}
{%- for part in m['content'] %}{%- if part['type'] in ('image', 'image_url') %}{{ IMAGE }}{%- else %}{{ part['text'] }}{%- endif %}{%- endfor %}{%- endif %}
{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"""

t = AutoTokenizer.from_pretrained(tiny)
words = list(SPECIALS.values())
if kind == "gemma3":  # the processor replaces several newlines by one token, so the vocabulary needs these tokens
    t.add_tokens([n for n in ("\n", "\n\n", "\n\n\n", "\n\n\n\n") if n not in t.get_vocab()])
t.add_special_tokens({"additional_special_tokens": words})
for name, word in SPECIALS.items():
    if name.endswith("_token"):
        t.init_kwargs[name] = word
        setattr(t, name, word)
    t.init_kwargs.pop("begin", None)
if kind == "gemma3":
    for name in ("boi_token", "eoi_token", "image_token"):
        setattr(t, name + "_id", t.convert_tokens_to_ids(SPECIALS[name]))
t.chat_template = TEMPLATE.replace("IMAGE", repr(IMAGE))
ids = {w: t.convert_tokens_to_ids(w) for w in words}
text = dict(vocab_size=len(t), hidden_size=128, intermediate_size=256, num_attention_heads=2, num_key_value_heads=2,
            max_position_embeddings=32768, bos_token_id=t.bos_token_id, eos_token_id=t.eos_token_id,
            pad_token_id=t.pad_token_id, num_hidden_layers=2, tie_word_embeddings=False)
torch.manual_seed(0)
if kind == "llava":
    from transformers import (
        CLIPImageProcessor, CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor)
    vision = CLIPVisionConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=336,
                              patch_size=14, projection_dim=64)
    config = LlavaConfig(vision_config=vision, text_config=LlamaConfig(**text, head_dim=64), image_token_index=ids["<image>"],
                         vision_feature_layer=-1, vision_feature_select_strategy="default")
    model = LlavaForConditionalGeneration(config)
    processor = LlavaProcessor(CLIPImageProcessor(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}), t,
                               patch_size=14, vision_feature_select_strategy="default", chat_template=t.chat_template,
                               image_token="<image>", num_additional_image_tokens=1)
elif kind == "qwen2vl":
    from transformers import (
        Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor)
    vision = dict(depth=2, embed_dim=64, hidden_size=128, num_heads=2, mlp_ratio=2, patch_size=14, spatial_merge_size=2,
                  temporal_patch_size=2, in_channels=3)
    extra = dict(vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
                 image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"])
    rope = {"rope_type": "default", "type": "mrope", "mrope_section": [8, 12, 12], "rope_theta": 1e6}
    config = Qwen2VLConfig(
        text_config=dict(text, rope_scaling=rope, rope_parameters=rope), vision_config=vision, **extra)
    model = Qwen2VLForConditionalGeneration(config)
    processor = Qwen2VLProcessor(Qwen2VLImageProcessor(), t, Qwen2VLVideoProcessor(), chat_template=t.chat_template)
else:
    from transformers import (
        Gemma3Config, Gemma3ForConditionalGeneration, Gemma3ImageProcessor, Gemma3Processor, Gemma3TextConfig, SiglipVisionConfig)
    vision = SiglipVisionConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=224,
                                patch_size=14, vision_use_head=False)
    text_config = Gemma3TextConfig(**text, head_dim=64, sliding_window=128, query_pre_attn_scalar=64,
                                   layer_types=["sliding_attention", "full_attention"])
    config = Gemma3Config(text_config=text_config, vision_config=vision, mm_tokens_per_image=64,
                          boi_token_index=ids["<start_of_image>"], eoi_token_index=ids["<end_of_image>"],
                          image_token_index=ids["<image_soft_token>"])
    model = Gemma3ForConditionalGeneration(config)
    processor = Gemma3Processor(
        Gemma3ImageProcessor(size={"height": 224, "width": 224}), t, chat_template=t.chat_template, image_seq_length=64)
model.to(torch.bfloat16).save_pretrained(out, safe_serialization=True)
processor.save_pretrained(out)
t.save_pretrained(out)
print(kind, "vocabulary", len(t), "parameters", sum(p.numel() for p in model.parameters()), ids, sorted(os.listdir(out)))
