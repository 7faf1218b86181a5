package block

// Attention is the kind of a cache group: the layers of a model that keep and drop their blocks together. What a
// cached block proves depends on it (vLLM: KVCacheSpec kinds; facts in docs/design/0001).
type Attention uint8

// The kinds of cache group that engines announce.
const (
	AttentionFull          Attention = iota // full, MLA and sink attention, and engines that name no kind: a block proves itself
	AttentionSlidingWindow                  // usable at length L when the window before L is present
	AttentionStateSpace                     // Mamba: usable at length L when a checkpoint at L is present
	AttentionOther                          // chunked local, encoder, cross, unknown: proves nothing
)

var attentionNames = [...]string{"full", "sliding_window", "state_space", "other"}

// String returns the kind's name as metrics and the admin API write it.
func (a Attention) String() string {
	if int(a) < len(attentionNames) {
		return attentionNames[a]
	}
	return "unknown"
}
