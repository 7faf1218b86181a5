package tokens

import (
	"time"

	"github.com/warmpath/warmpath/placement"
)

const (
	// leastWait is the shortest wait for ids, within Config.Budget: an idle engine answers in 3 to 5 ms. If the budget
	// is longer than half a second, the shortest wait is 1/leastShare of the budget.
	leastWait  = 10 * time.Millisecond
	leastShare = 50
	// A request waits 1/worthShare of the time that a match is expected to save. A longer wait is not worth it: a match by
	// text often finds the same worker, and an engine that answers questions has less time for requests.
	worthShare = 10
	// assumedPerToken is the time to compute one token of a prompt, while no measured time is known. A 32B model on two
	// H100 takes about as long (fleet.DefaultTiming).
	assumedPerToken = 40 * time.Microsecond
	// assumedChance is the assumed chance that a part of a prompt is cached. This chance is used before a model's first
	// request.
	assumedChance = 0.5
)

// Load is the load of an engine.
type Load struct {
	Requests int           // number of requests under way or in the engine's queue
	Waiting  int           // number of Requests that have no first token yet
	PerToken time.Duration // time to compute one token of a long prompt; 0: not known
}

// worth returns the time that a match of so many bytes of a prompt is expected to save. The expected saving is the time
// to compute these bytes, times the chance that a part of the model's prompts is cached.
func (s *Source) worth(model string, bytes int, workers []Worker) time.Duration {
	perToken := assumedPerToken
	if s.Loads != nil && len(workers) > 0 {
		if known := s.Loads()(workers[0]).PerToken; known > 0 {
			perToken = known
		}
	}
	worth := float64(max(bytes, 1)) / placement.BytesPerToken * s.hitRates.of(model) * float64(perToken)
	return max(time.Duration(min(worth, float64(time.Hour))), 1) // at least 1, because 0 marks a question for which no request waits
}

// patience returns how long a request waits for ids. worth is the time that these ids are expected to save.
func (s *Source) patience(worth time.Duration) time.Duration {
	return min(max(worth/worthShare, leastWait, s.cfg.Budget/leastShare), s.cfg.Budget)
}
