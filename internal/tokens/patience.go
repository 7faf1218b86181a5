package tokens

import "time"

const (
	// leastWait is the shortest wait for ids, within Config.Budget: an idle engine answers in 3 to 5 ms. With a budget
	// of more than half a second the shortest wait is 1/leastShare of the budget.
	leastWait  = 10 * time.Millisecond
	leastShare = 50
	// worthShare: a request waits 1/worthShare of the time that a match is expected to save. It does not wait longer,
	// because the text often finds the same worker without ids, and because a busy engine delays other requests for its
	// answer.
	worthShare = 10
	// assumedPerToken is how long a prompt's token takes to compute while it is not known: a model of 32B on two H100
	// (fleet.DefaultTiming).
	assumedPerToken = 40 * time.Microsecond
	// assumedChance is the chance that a part of a prompt is cached, before any match was seen.
	assumedChance = 0.5
	// bytesPerToken estimates tokens from text: English and code have 3.5 to 4.5 bytes a token in current vocabularies.
	bytesPerToken = 4
)

// Load is the load of an engine.
type Load struct {
	Requests int           // under way, and in the engine's queue
	Waiting  int           // how many of Requests have no first token yet
	PerToken time.Duration // time to compute a token of a long prompt; 0 is not known
}

// worth returns the time that a match of the given number of bytes of a prompt is expected to save: the time to compute
// them, times the chance that a part of the model's prompts is cached.
func (s *Source) worth(model string, bytes int, workers []Worker) time.Duration {
	perToken := assumedPerToken
	if s.Loads != nil && len(workers) > 0 {
		if known := s.Loads()(workers[0]).PerToken; known > 0 {
			perToken = known
		}
	}
	worth := float64(max(bytes, 1)) / bytesPerToken * s.hitRates.of(model) * float64(perToken)
	return max(time.Duration(min(worth, float64(time.Hour))), 1) // 0 marks a question without a waiter
}

// patience returns how long a request waits for ids of the given worth.
func (s *Source) patience(worth time.Duration) time.Duration {
	return min(max(worth/worthShare, leastWait, s.cfg.Budget/leastShare), s.cfg.Budget)
}
