package fleet

// Trust says how far a holder's entries in the index can be believed. The order is from least to most.
type Trust uint8

// The levels of trust.
const (
	// TrustNone: the entries are not used for matching.
	TrustNone Trust = iota
	// TrustApproximate: there are no events, or a tier (GPU, CPU, disk, remote) announces no removals. Without events,
	// entries are learned from the requests that were sent to the holder. Learned entries and the tier's entries expire.
	TrustApproximate
	// TrustDegraded: events arrive, but history is missing, or the events do not prove what some cache groups (layers that
	// evict together) contain. The entries of the index are true, but the holder may have more blocks.
	TrustDegraded
	// TrustExact: the stream is complete from the engine's start or from a full replay.
	TrustExact
)

var trustNames = [...]string{"none", "approximate", "degraded", "exact"}

// String returns the level's name as metrics, headers and the admin API write it.
func (t Trust) String() string {
	if int(t) < len(trustNames) {
		return trustNames[t]
	}
	return "unknown"
}

// ParseTrust returns the level of a name that String returned. A name that it does not know, such as one of a later
// version, is TrustNone: it is better to believe too little.
func ParseTrust(name string) Trust {
	for t, known := range trustNames {
		if known == name {
			return Trust(t)
		}
	}
	return TrustNone
}

// trustState is replaced as a whole, so that a reader never sees one level with the reason of another.
type trustState struct {
	level Trust
	why   string
}

// initialTrust is the trust before the first event: entries are learned from requests, as for a worker that publishes
// no events.
var initialTrust = trustState{TrustApproximate, "no events: " + LearnedFromRequests}

// LearnedFromRequests ends the reason of a trust if the router learns the cache from the requests that it sends.
const LearnedFromRequests = "learned from requests"
