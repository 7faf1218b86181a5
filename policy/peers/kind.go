package peers

import "github.com/warmpath/warmpath/policy"

// Kinds returns the kinds of this package, by name.
func Kinds() policy.Kinds {
	return policy.Kinds{
		policy.NewKind("bucket", DefaultBucket),
		policy.NewKind("cache_aware", DefaultCacheAware),
		policy.NewKind("consistent_hash", DefaultConsistentHash),
		policy.NewKind("estimated", DefaultEstimated),
		policy.NewKind("kv", DefaultKV),
		policy.NewKind("lmcache_aware", DefaultLMCacheAware),
		policy.NewKind("lmetric", func() LMetric { return LMetric{} }),
		policy.NewKind("manual", DefaultManual),
		policy.NewKind("mix", DefaultMix),
		policy.NewKind("precise_prefix_cache", DefaultPrecisePrefixCache),
		policy.NewKind("predicted_ttft", DefaultPredictedTTFT),
		policy.NewKind("prefix_cache_affinity", DefaultPrefixCacheAffinity),
		policy.NewKind("prefix_hash", DefaultPrefixHash),
		policy.NewKind("rendezvous_hash", DefaultRendezvousHash),
		policy.NewKind("session_affinity", DefaultSessionAffinity),
		policy.NewKind("smg_least_load", DefaultSMGLeastLoad),
		policy.NewKind("smg_power_of_two", func() SMGPowerOfTwo { return SMGPowerOfTwo{} }),
		policy.NewKind("vllm_cache_aware", DefaultVLLMCacheAware),
	}
}
