package kvevent

import (
	"strings"

	"github.com/warmpath/warmpath/block"
)

// media maps the names that engines use for a medium to tiers, the most frequent name first. Upper and lower case are
// the same, because engines differ in this.
var media = []struct {
	name string
	tier block.Tier
}{
	{"GPU", block.TierGPU},               // vLLM, SGLang, TensorRT-LLM
	{"", block.TierGPU},                  // vLLM before 0.10.2 and SGLang before 0.5.9 have no such field
	{"CPU", block.TierCPU},               // vLLM's offloading and Mooncake connectors, LMCache
	{"CPU_PINNED", block.TierCPU},        // SGLang
	{"DISK", block.TierDisk},             // SGLang
	{"FS", block.TierDisk},               // vLLM in July 2026
	{"STORAGE", block.TierDisk},          // vLLM since #48123, for file systems and objects: see Event.Locality
	{"OBJ", block.TierRemote},            // vLLM in July 2026
	{"EXTERNAL", block.TierRemote},       // SGLang
	{"SHARED_STORAGE", block.TierRemote}, // llm-d's file system backend
}

// tierOf returns the tier for the medium and locality of an event. An unknown medium, and any medium on another
// machine, counts as the lowest tier, because blocks on the lowest tier are worth least.
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

// ownedTier returns the tier for copies of an owner on a medium. For OwnerKVCR it is the tier below the medium.
func ownedTier(medium block.Tier, owner string) block.Tier {
	if owner == OwnerKVCR {
		return min(medium+1, block.NumTiers-1)
	}
	return medium
}
