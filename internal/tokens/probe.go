package tokens

import (
	"context"
	"errors"
)

// Prober is a [Local] that compares its ids with the engines' ids before the ids are used. Such a comparison is called
// a probe.
type Prober interface {
	// Agrees reports whether the worker's present process gave the same ids as Local in every probe.
	Agrees(model string, w Worker) bool
}

// Ask asks one worker for the ids of p. It ignores the budget, the cache and the pauses after failures. If the worker
// gives ids, the outcome is Render or Tokenize. If the worker has no token endpoint, or refuses the key, the outcome is
// Unsupported. Otherwise the outcome is Refused or Failed. The call ends with ctx.
func (s *Source) Ask(ctx context.Context, w Worker, p Prompt) Found {
	s.asked.Add(1)
	q := new(question)
	s.fill(q, &p, nil, nil)
	found, err := s.call(ctx, w, q)
	switch {
	case err == nil:
		found.Kind = w.Kind
		return found
	case errors.Is(err, errRefused):
		return Found{Outcome: Refused}
	case errors.Is(err, errMissing), errors.Is(err, errKey):
		return Found{Outcome: Unsupported}
	}
	return Found{Outcome: Failed}
}

// Renew forgets the comparisons of the model's ids with engines' ids. It is called when the ids are made from other
// files, or for other engines.
func (s *Source) Renew(model string) {
	s.checks.mu.Lock()
	defer s.checks.mu.Unlock()
	delete(s.checks.models, model)
	delete(s.checks.models, imagesOf(model))
}

// proven reports whether the worker may get a request's ids instead of its text.
func (s *Source) proven(f *Forward) bool {
	if !f.Found.Probed {
		return s.checks.proven(f.Model)
	}
	p, ok := s.Local.(Prober)
	return ok && s.checks.believed(f.Model) && p.Agrees(f.Model, f.To)
}
