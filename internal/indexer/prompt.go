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
	found := s.Tokens.Find(ctx, tokens.Prompt{Request: q.read, Model: q.read.Model}, workers)
	switch {
	case found.Tokens != nil:
	case withheld && len(workers) == 0:
		return fmt.Errorf("%w: a service without a key sends no prompt to a registered worker; list the worker (--worker), set WARMPATH_INDEX_KEY, "+
			"give the service the model's files (--model-path), or send token_ids", errNoTokens)
	default:
		return fmt.Errorf("%w (%s): give the service the model's files (--model-path), or send token_ids", errNoTokens, cmp.Or(found.Missing, found.Outcome))
	}
	r := &q.request
	// Only the engine's own ids count: the ids after them stand for text whose ids are not known.
	r.Tokens, r.Features, r.Known, r.Stable = found.Tokens[:min(found.Sure, len(found.Tokens))], found.Features, found.Known, found.Stable
	return nil
}
