package block

// Attention is the kind of a cache group. A cache group is the layers of a model that keep and drop their blocks
// together. The kind decides which blocks have to be cached so that a prefix is usable (vLLM: KVCacheSpec kinds; see
// docs/design/0001).
type Attention uint8

// The kinds of cache group that engines announce.
const (
	AttentionFull          Attention = iota // a prefix is usable if all its blocks are cached: full, MLA, sink, or no kind given
	AttentionSlidingWindow                  // a prefix of length L is usable if the window before L is cached
	AttentionStateSpace                     // Mamba: a prefix of length L is usable if a checkpoint at L is cached
	AttentionOther                          // chunked local, encoder, cross, unknown: blocks of this kind never count
)

var attentionNames = [...]string{"full", "sliding_window", "state_space", "other"}

// String returns the kind's name as metrics and the admin API write it.
func (a Attention) String() string {
	if int(a) < len(attentionNames) {
		return attentionNames[a]
	}
	return "unknown"
}
