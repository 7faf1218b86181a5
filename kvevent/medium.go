package kvevent

import (
	"strings"

	"github.com/warmpath/warmpath/block"
)

// media maps what engines call their tiers to ours, most frequent first. Engines do not agree on case.
var media = []struct {
	name string
	tier block.Tier
}{
	{"GPU", block.TierGPU},               // vLLM, SGLang, TensorRT-LLM
	{"", block.TierGPU},                  // vLLM before 0.10.2 and SGLang before 0.5.9 have no field for it
	{"CPU", block.TierCPU},               // vLLM's offloading and Mooncake connectors, LMCache
	{"CPU_PINNED", block.TierCPU},        // SGLang
	{"DISK", block.TierDisk},             // SGLang
	{"FS", block.TierDisk},               // vLLM, July 2026
	{"STORAGE", block.TierDisk},          // vLLM since #48123, for file systems and objects; locality tells them apart
	{"OBJ", block.TierRemote},            // vLLM, July 2026
	{"EXTERNAL", block.TierRemote},       // SGLang
	{"SHARED_STORAGE", block.TierRemote}, // llm-d's file system backend
}

// tierOf returns the tier that an engine names. An unknown name is the lowest tier, so that it weighs least; so is
// everything that lies on another machine.
func tierOf(medium, locality string) block.Tier {
	if medium == "GPU" && locality == "" { // nearly always
		return block.TierGPU
	}
	if strings.EqualFold(locality, "REMOTE") {
		return block.TierRemote
	}
	for i := range media {
		if strings.EqualFold(media[i].name, medium) {
			return media[i].tier
		}
	}
	return block.TierRemote
}

// attentionOf returns the kind of a cache group by vLLM's name for it (v1/kv_cache_interface.py).
func attentionOf(spec string) block.Attention {
	switch spec {
	case "", "full_attention", "mla_attention", "sink_full_attention":
		return block.AttentionFull
	case "sliding_window", "sliding_window_mla":
		return block.AttentionSlidingWindow
	case "mamba":
		return block.AttentionStateSpace
	}
	return block.AttentionOther
}

// ownedTier returns the tier that an owner's copies on a medium count for: KVCR's one below it.
func ownedTier(medium block.Tier, owner string) block.Tier {
	if owner == OwnerKVCR {
		return min(medium+1, block.NumTiers-1)
	}
	return medium
}
