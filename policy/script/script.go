package script

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/warmpath/warmpath/policy"
)

// Script lets a file in the language Starlark choose the worker. The file is read and compiled by Validate, so that a
// mistake in it is found where other mistakes in parameters are found.
type Script struct {
	// File is the path of the script. A relative path begins at the working directory of the process.
	File string `yaml:"file"`
	// MaxSteps is the greatest number of the interpreter's steps in one call. If a call needs more, the default policy
	// decides that request. A step takes about 20 ns, so that a loop without an end takes 2 ms of each request.
	MaxSteps int `yaml:"max_steps"`
	// StateEntries is how many entries the script may keep from one request to the next. If there are more, the entry
	// that was set longest ago is dropped. An entry takes 1.5 KB at most.
	StateEntries int `yaml:"state_entries"`

	text     string   // what Validate has read; two scripts are the same policy only if their texts are equal
	compiled *program // the compiled text; nil before Validate
}

// Default returns the parameters of a script, without a file.
func Default() Script { return Script{MaxSteps: 100_000, StateEntries: 10_000} }

// Kinds returns the kind of this package: script.
func Kinds() policy.Kinds { return policy.Kinds{policy.NewKind("script", Default)} }

// Validate reads and compiles the file, runs its own statements, and returns all problems. A problem of the script
// names the line and the column.
func (p *Script) Validate() error {
	var wrong policy.Problems
	wrong.Within("max_steps", float64(p.MaxSteps), 1000, 10_000_000)
	wrong.Within("state_entries", float64(p.StateEntries), 0, 1_000_000)
	if err := p.load(); err != nil {
		wrong = append(wrong, fmt.Errorf("file: %w", err))
	}
	return wrong.Join()
}

func (p *Script) load() error {
	if p.File == "" {
		return fmt.Errorf("name the script, such as choose.star")
	}
	text, err := readFile(p.File)
	if err != nil {
		if dir, unknown := os.Getwd(); unknown == nil && !filepath.IsAbs(p.File) { // a service's is not the operator's
			err = fmt.Errorf("%w; a relative path begins at the working directory, %s", err, dir)
		}
		return fmt.Errorf("read the script: %w", err)
	}
	if p.compiled != nil && p.text == string(text) {
		return nil
	}
	compiled, err := compile(filepath.Base(p.File), text)
	if err != nil {
		return err
	}
	if _, err := compiled.run(newState(p.StateEntries)); err != nil {
		return err
	}
	p.text, p.compiled = string(text), compiled
	return nil
}

// readFile reads the first bytes of a file: one more than a script may have.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSource+1))
}

// Text returns the policy of a script whose text is given, in place of a file. file is the name in errors.
func Text(name, file, text string, p Script) (policy.Spec, error) {
	compiled, err := compile(file, []byte(text))
	if err != nil {
		return policy.Spec{}, err
	}
	p.text, p.compiled = text, compiled
	if _, err := compiled.run(newState(p.StateEntries)); err != nil {
		return policy.Spec{}, err
	}
	return p.Spec(name), nil
}

// Spec returns the policy. If Validate did not read the script, or found a problem, the default policy decides each
// request.
func (p *Script) Spec(name string) policy.Spec {
	compiled, file, steps, entries := p.compiled, p.File, p.MaxSteps, p.StateEntries
	return policy.Spec{
		Name: name, NeedsMatches: true, NeedsAtRisk: true, Terms: []string{"score"}, Reach: policy.ReachAll,
		Reasons: map[policy.Branch]string{policy.BranchScript: "the script's choice"},
		Chooser: func() policy.Chooser {
			if compiled == nil {
				return newChooser(filepath.Base(file), steps, functions{})
			}
			f, err := compiled.run(newState(entries))
			if err != nil {
				panic("bug: a script ran once, and then fails: " + err.Error()) // nothing in it depends on time or chance
			}
			return newChooser(compiled.file, steps, f)
		},
	}
}
