package indexer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
)

// errNoTokens means that a text or a chat could not be turned into token ids.
var errNoTokens = errors.New("the token ids of the prompt could not be found")

// errLate means that the token ids did not come in time. A later question may get them.
var errLate = errors.New("the token ids of the prompt did not come in time")

// missing returns the error of a prompt without token ids. asked says that there are workers to ask, and withheld that
// the service asks a registered worker for nothing.
func missing(prompt *api.Request, why tokens.Outcome, asked, withheld bool) error {
	switch {
	case why == tokens.Batch:
		return errors.New("the question has several prompts: ask about one prompt at a time")
	case why == tokens.Refused && prompt.Form == api.PromptNone:
		return errors.New("the question has no prompt: messages or prompt has nothing in it")
	case why == tokens.Refused:
		return errors.New("the worker refuses to make token ids of the prompt: correct the prompt, or the worker's key in the service's configuration")
	case why == tokens.TimedOut, why == tokens.Limited, asked && (why == tokens.Failed || why == tokens.NoWorker):
		return fmt.Errorf("%w (%s): try again; tokens.budget is how long the service waits for a worker. A service that has the model's files (--model-path) asks no worker", errLate, why)
	case withheld && !asked:
		return fmt.Errorf("%w: a service without a key sends no prompt to a registered worker; list the worker (--worker), set WARMPATH_INDEX_KEY, "+
			"give the service the model's files (--model-path), or send token_ids", errNoTokens)
	}
	return fmt.Errorf("%w (%s): give the service the model's files (--model-path), or send token_ids", errNoTokens, why)
}

// find sets q.request's tokens if the prompt is a text or a chat. It may send the prompt to a worker. Without a key,
// any program of this machine can register a URL, so the service sends no client's prompt to a registered worker.
func (s *Service) find(ctx context.Context, q *question, pool *fleet.Pool) error {
	switch {
	case q.hasText:
		q.body, q.dialect = []byte(`{"prompt":`+string(appendQuoted(nil, q.text))+`}`), api.OpenAICompletions
	case q.body == nil:
		return nil
	}
	if s.Tokens == nil {
		return fmt.Errorf("%w: this service answers only token_ids and keys", errNoTokens)
	}
	if q.read == nil {
		q.read = new(api.Request)
	}
	if err := api.Read(q.dialect, q.body, q.read); err != nil {
		return err
	}
	q.read.Model, _ = unpooled(pool.Model)
	q.salt, q.extra = cmp.Or(q.salt, q.read.CacheSalt), cmp.Or(q.extra, q.read.ExtraKey)
	var workers []tokens.Worker
	withheld := false
	for _, w := range pool.Workers {
		if asked := strings.HasPrefix(w.URL, "http") || strings.HasPrefix(w.URL, "unix:"); !asked || !w.Ready {
			continue
		}
		switch registered := s.registry.has(w.URL); {
		case registered && s.config.Key == "":
			withheld = true
		case registered, w.Facts.CanTokenize, w.Facts.CanRender:
			one := tokens.WorkerOf(w, pool.Model)
			one.URL = bare(one.URL)
			workers = append(workers, one)
		}
	}
	found := s.Tokens.Find(ctx, tokens.Prompt{Request: q.read, Model: q.read.Model, Patient: true}, workers)
	if found.Tokens == nil {
		return cmp.Or(ctx.Err(), missing(q.read, cmp.Or(found.Missing, found.Outcome), len(workers) > 0, withheld))
	}
	r := &q.request
	// Only the engine's own ids count: the ids after them stand for text whose ids are not known.
	r.Tokens, r.Features, r.Known, r.Stable = found.Tokens[:min(found.Sure, len(found.Tokens))], found.Features, found.Known, found.Stable
	return nil
}
