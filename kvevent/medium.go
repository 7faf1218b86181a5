package kvevent

import (
	"strings"

	"github.com/warmpath/warmpath/block"
)

// media maps engines' names of tiers, most frequent first. Engines differ in letter case.
var media = []struct {
	name string
	tier block.Tier
}{
	{"GPU", block.TierGPU},               // vLLM, SGLang, TensorRT-LLM
	{"", block.TierGPU},                  // vLLM before 0.10.2 and SGLang before 0.5.9 have no such field
	{"CPU", block.TierCPU},               // vLLM's offloading and Mooncake connectors, LMCache
	{"CPU_PINNED", block.TierCPU},        // SGLang
	{"DISK", block.TierDisk},             // SGLang
	{"FS", block.TierDisk},               // vLLM, July 2026
	{"STORAGE", block.TierDisk},          // vLLM since #48123, for file systems and objects; locality distinguishes them
	{"OBJ", block.TierRemote},            // vLLM, July 2026
	{"EXTERNAL", block.TierRemote},       // SGLang
	{"SHARED_STORAGE", block.TierRemote}, // llm-d's file system backend
}

// tierOf returns the tier of an engine's medium and locality. An unknown medium, or any medium on another machine,
// counts as the lowest tier, because blocks there are worth least.
func tierOf(medium, locality string) block.Tier {
	if medium == "GPU" && locality == "" { // the usual case
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

// attentionOf returns the kind of a cache group from vLLM's name (v1/kv_cache_interface.py).
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

// ownedTier returns the tier for an owner's copies on a medium. Copies of KVCR count for the tier below the medium.
func ownedTier(medium block.Tier, owner string) block.Tier {
	if owner == OwnerKVCR {
		return min(medium+1, block.NumTiers-1)
	}
	return medium
}
