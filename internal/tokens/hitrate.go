package tokens

import "sync"

// hitRates estimates, for each base model, the probability that a part of a prompt is cached. For a model without
// requests the estimate is assumedChance. hitRates is safe for concurrent use, and its zero value is ready for use.
type hitRates struct {
	mu     sync.Mutex
	models map[string]float64 // guarded by mu; one rate for each model that the fleet serves
}

// hitRateWeight is the weight of one request, so the last few dozen requests decide the rate.
const hitRateWeight = 1.0 / 32

func (c *hitRates) of(model string) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.models[model]; ok {
		return p
	}
	return assumedChance
}

// Matched records whether any part of a prompt was cached. It is called for prompts with known ids. model is the base
// model.
func (s *Source) Matched(model string, anything bool) {
	c := &s.hitRates
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.models[model]
	if !ok {
		p = assumedChance
	}
	if c.models == nil {
		c.models = map[string]float64{}
	}
	if anything {
		p += (1 - p) * hitRateWeight
	} else {
		p -= p * hitRateWeight
	}
	c.models[model] = p
}
