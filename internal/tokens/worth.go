package tokens

import "time"

const (
	// leastWait is how long any request waits for its ids, within Config.Budget: an idle engine answers in 3 to 5 ms. A
	// budget of more than half a second says that exactness is worth more, for short prompts, too: a fiftieth of it
	// then.
	leastWait  = 10 * time.Millisecond
	leastShare = 50
	// worthShare is the part of what a match is expected to save that a request waits for it. A tenth: without ids
	// there is still the text, which often finds the same worker, and a busy engine makes others wait for its answer,
	// too.
	worthShare = 10
	// assumedPerToken is how long a prompt's token takes to compute where nothing tells: 32B over two H100
	// (fleet.DefaultTiming).
	assumedPerToken = 40 * time.Microsecond
	// assumedChance is how likely a prompt is taken to be cached in part before anything was learned.
	assumedChance = 0.5
	// bytesPerToken estimates tokens from text: English and code have 3.5 to 4.5 bytes a token in current vocabularies.
	bytesPerToken = 4
)

// Load is what is known of an engine's work.
type Load struct {
	Requests int           // under way, and in its queue
	Waiting  int           // of those, without a first token
	PerToken time.Duration // what a token of a long prompt takes to compute; 0 is not known
}

// worth is the time that a match of so many bytes of a prompt is expected to save: what they take to compute, times the
// chance that anything of the model's prompts is cached.
func (s *Source) worth(model string, bytes int, workers []Worker) time.Duration {
	perToken := assumedPerToken
	if s.Loads != nil && len(workers) > 0 {
		if told := s.Loads()(workers[0]).PerToken; told > 0 {
			perToken = told
		}
	}
	worth := float64(max(bytes, 1)) / bytesPerToken * s.chances.of(model) * float64(perToken)
	return max(time.Duration(min(worth, float64(time.Hour))), 1) // 0 is a question that nobody waits for
}

// patience is how long a request waits for ids that are worth so much.
func (s *Source) patience(worth time.Duration) time.Duration {
	return min(max(worth/worthShare, leastWait, s.cfg.Budget/leastShare), s.cfg.Budget)
}
