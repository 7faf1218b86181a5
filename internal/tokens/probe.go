package tokens

import (
	"context"
	"errors"
)

// Prober is a [Local] that compares its ids with the engines' in probes before they are used.
type Prober interface {
	// Agrees reports whether the worker's present process gave the same ids as Local in every probe.
	Agrees(model string, w Worker) bool
}

// Ask asks one worker for the ids of p, independently of requests: without budget, cache and breaker. The outcome is
// Render or Tokenize with the ids, Refused, Failed, or Unsupported when the worker has no token endpoint. The call ends
// with ctx.
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

// Renew forgets how the model's ids compared so far: they are made from other files now, or for other engines.
func (s *Source) Renew(model string) {
	s.checks.mu.Lock()
	defer s.checks.mu.Unlock()
	delete(s.checks.models, model)
	delete(s.checks.models, imagesOf(model))
}

// proven reports whether the worker may get a request's ids in place of its text.
func (s *Source) proven(f *Forward) bool {
	if !f.Found.Probed {
		return s.checks.proven(f.Model)
	}
	p, ok := s.Local.(Prober)
	return ok && s.checks.believed(f.Model) && p.Agrees(f.Model, f.To)
}
