package inprocess

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/tokens"
)

// Models has the models with files that the operator named, by base model. It is safe for concurrent use.
type Models struct {
	named    map[string]*Model
	nameless *Model            // the only model, if it was given without a name
	from     map[*Model]string // folder of each model
}

// Open loads the models of all paths. The error names each path that could not be loaded, and the reason.
func Open(paths []Path) (*Models, error) {
	all := &Models{named: map[string]*Model{}, from: map[*Model]string{}}
	var problems []error
	for _, p := range paths {
		m, err := OpenOne(p.Path)
		all.from[m] = p.Path
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("model path %s: %w; mend it or leave the path out: the router then looks "+
				"for the files by itself, and asks the engine where it finds none", p.Path, err))
		case p.Name == "" && len(paths) > 1:
			problems = append(problems, fmt.Errorf("model path %s: with several models each needs its name: NAME=%s", p.Path,
				p.Path))
		case p.Name == "":
			all.nameless = m
		case all.named[p.Name] != nil:
			problems = append(problems, fmt.Errorf("model path %s: model %s has two paths", p.Path, p.Name))
		default:
			all.named[p.Name] = m
		}
	}
	return all, errors.Join(problems...)
}

// OpenOne loads the model at a path: see [Path].
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

// find makes the ids of a prompt from m's files. If only the engine can make the ids, ok is false.
func (m *Model) find(p *tokens.Prompt) (found tokens.Found, ok bool) {
	// An image is a long text in the body, and gives few tokens. So for a prompt with images, Encode checks the length
	// without the images.
	size := p.Request.PromptBytes()
	if p.Own != nil && m.harmony != nil { // vLLM renders such a request in another way than a chat
		return tokens.Found{}, false
	}
	if p.Has(elsewhere) || size > maxPrompt && !p.Request.Multimodal {
		return tokens.Found{}, false
	}
	// A token has about four bytes, so most prompts need one allocation.
	made, err := m.Encode(make([]block.Token, 0, min(size, maxPrompt)/4+64), p.Request,
		Origin{p.Kind, p.Root, p.Own != nil})
	switch {
	case errors.Is(err, ErrRefused):
		return tokens.Found{Outcome: tokens.Refused}, true
	case err != nil:
		return tokens.Found{}, false
	}
	return tokens.Found{Tokens: made.Tokens, Features: made.Features, Known: made.Known, Stable: made.Stable,
		Outcome: tokens.InProcess}, true
}

// modified returns the modification time of a folder's entry, or the zero time if it cannot be read.
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
