package sharedindex

import "sync/atomic"

// Stats describes the use of a shared index at one moment. The counters count since the start of the process.
type Stats struct {
	Connected bool // the server answers
	// The reader's part.
	Lookups    int64 // lookups that were answered
	Failed     int64 // lookups without an answer
	RoundTrips int64 // questions to the server for lookups; there are 0 to 2 for each
	CacheHits  int64 // records that were in the client's cache
	CacheMiss  int64 // records that were not
	Invalid    int64 // values at the server that no writer has written
	Writers    int64 // writers that count now
	Holders    int64 // holders that count now
	// Learned placements.
	PlacementsWritten int64 // prompts that were written
	PlacementsDropped int64 // prompts that were not, because too many waited or the server did not answer
	PlacementHolders  int64 // holders of which the reader knows learned placements now
	// The writer's part.
	Written  int64 // blocks that were added or dropped at the server
	Waiting  int64 // changes that wait to be written
	Dropped  int64 // changes that were dropped because the queue was full or the connection was lost
	Resyncs  int64 // times that a holder was written as a whole
	Refused  int64 // changes that the server refused because it is full
	Sessions int64 // times that the writer began anew, because it connected or the server lost something
}

// counters are the counters of a Reader and of a Writer. Each field is for one of them or for both.
type counters struct {
	connected                                                      atomic.Bool
	lookups, failed, roundTrips, hits, misses, invalid             atomic.Int64
	writers, holders, placementHolders, written, refused, sessions atomic.Int64
}
