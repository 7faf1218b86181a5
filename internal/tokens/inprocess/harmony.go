package inprocess

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/tokenizer"
)

// loadHarmony returns the special tokens of a gpt-oss model. It returns nil for other models, and for a tokenizer that
// lacks one of these tokens.
func loadHarmony(files fs.FS, t *tokenizer.Tokenizer) map[string]block.Token {
	var config struct {
		Type string `json:"model_type"`
	}
	if !readOptional(files, "config.json", &config) || config.Type != "gpt_oss" {
		return nil
	}
	ids := map[string]block.Token{}
	for _, token := range [...]string{"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"} {
		id, ok := t.ID(token)
		if !ok {
			return nil
		}
		ids[token] = id
	}
	return ids
}

// harmonyChat makes the ids of a chat for gpt-oss. vLLM renders such chats without the model's template. The prompt
// contains the date of the time now.
func (m *Model) harmonyChat(dst []block.Token, r *api.Request, now time.Time) (Encoded, error) {
	pieces, err := readHarmony(r.Body(), now)
	var refused *requestError
	switch {
	case errors.As(err, &refused):
		return Encoded{Tokens: dst}, fmt.Errorf("%w: %w", ErrRefused, err)
	case err != nil:
		return Encoded{Tokens: dst}, fmt.Errorf("%w: %w", ErrElsewhere, err)
	}
	out := dst
	for i := range pieces {
		if p := &pieces[i]; p.Special != "" {
			out = append(out, m.harmony[p.Special])
		} else if out, err = m.turns.AppendSpecialAsText(out, p.Text); err != nil {
			return Encoded{Tokens: dst}, err
		}
	}
	return Encoded{Tokens: out}, nil
}
