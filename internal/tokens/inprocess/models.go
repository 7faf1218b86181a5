package inprocess

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/tokens"
)

// Models are the models whose ids are made in this process, by the name of the base model. It implements tokens.Local and
// is safe for concurrent use.
type Models struct {
	named map[string]*Model
	any   *Model            // serves every name, when it is the only one
	from  map[*Model]string // their folders
}

// Open loads the models of all paths, or says which could not be loaded and why.
func Open(paths []Path) (*Models, error) {
	all := &Models{named: map[string]*Model{}, from: map[*Model]string{}}
	var problems []error
	for _, p := range paths {
		m, err := OpenOne(p.Path)
		all.from[m] = p.Path
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("model path %s: %w", p.Path, err))
		case p.Name == "" && len(paths) > 1:
			problems = append(problems, fmt.Errorf("model path %s: with several models each needs its name: NAME=%s", p.Path, p.Path))
		case p.Name == "":
			all.any = m
		case all.named[p.Name] != nil:
			problems = append(problems, fmt.Errorf("model path %s: model %s has two paths", p.Path, p.Name))
		default:
			all.named[p.Name] = m
		}
	}
	return all, errors.Join(problems...)
}

// OpenOne loads the model in a folder, see [Path].
func OpenOne(path string) (*Model, error) {
	if _, is, err := parseHub(path); is {
		return nil, errors.Join(err, errors.New("it is on the hub and was not fetched"))
	}
	dir, err := folder(path)
	if err != nil {
		return nil, err
	}
	return Load(os.DirFS(dir))
}

// Find makes the ids of a prompt. ok is false when that cannot be done here.
func (a *Models) Find(_ context.Context, p *tokens.Prompt) (found tokens.Found, ok bool) {
	m := a.model(p.Model)
	if m == nil {
		return tokens.Found{}, false
	}
	return m.find(p)
}

// find makes the ids of a prompt from m's files. ok is false when that cannot be done here.
func (m *Model) find(p *tokens.Prompt) (found tokens.Found, ok bool) {
	// Images stand in a body as long texts, and are few tokens.
	size := p.Request.PromptBytes()
	if p.Has(elsewhere) || size > maxPrompt && !p.Request.Multimodal {
		return tokens.Found{}, false
	}
	// About four bytes a token: one allocation for most prompts.
	made, err := m.Encode(make([]block.Token, 0, min(size, maxPrompt)/4+64), p.Request, Origin{p.Kind, p.Root})
	switch {
	case errors.Is(err, ErrRefused):
		return tokens.Found{Outcome: tokens.Refused}, true
	case err != nil:
		return tokens.Found{}, false
	}
	return tokens.Found{Tokens: made.Tokens, Features: made.Features, Known: made.Known, Stable: made.Stable, Outcome: tokens.InProcess}, true
}

// Text returns the text of ids, for messages.
func (a *Models) Text(model string, ids []block.Token) string {
	m := a.model(model)
	if m == nil {
		return ""
	}
	return m.Decode(ids)
}

// folder returns where the files of a model are.
func (a *Models) folder(name string) string { return a.from[a.model(name)] }

func (a *Models) model(name string) *Model {
	if m := a.named[name]; m != nil {
		return m
	}
	return a.any
}

// modified is when an entry of a folder was changed; the beginning of time for none.
func modified(e fs.DirEntry) time.Time {
	if e == nil {
		return time.Time{}
	}
	info, err := e.Info()
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
