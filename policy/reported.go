package policy

import "github.com/warmpath/warmpath/fleet"

// Reports reports whether the last report of the candidate's engine still counts at now, in Unix nanoseconds.
func (c *Candidate) Reports(now int64) bool {
	return c.Load.Reported.At != 0 && now-c.Load.Reported.At < int64(fleet.ReportedFor)
}

// KVUsed returns the share of the candidate's KV cache that running requests use at now. It returns the share that the
// engine reports, or without a report, the share that this router's own requests there use. It returns 0 if neither the
// report nor the size of the cache is known.
func (c *Candidate) KVUsed(now int64) float64 {
	if c.Reports(now) {
		return min(max(c.Load.Reported.KVUsed, 0), 1)
	}
	capacity := c.Worker.Facts.BlocksPerRank
	if capacity <= 0 {
		return 0
	}
	used := float64(c.Load.ContextBlocks) + float64(c.Load.OutputTokens)/float64(max(c.BlockSize, 1))
	return min(max(used/float64(capacity), 0), 1)
}

// waiting returns the number of requests in the candidate's queue, as its engine reports. Without a report, it returns
// the number of this router's requests there without a first token.
func waiting(q *Query, c *Candidate) int64 {
	if c.Reports(q.Now) {
		return c.Load.Reported.Waiting
	}
	return c.Load.Waiting
}

// running returns the number of requests that the candidate computes, as its engine reports. Without a report, it
// returns the number of this router's requests there.
func running(q *Query, c *Candidate) int64 {
	if c.Reports(q.Now) {
		return c.Load.Reported.Running
	}
	return c.Load.Requests
}
