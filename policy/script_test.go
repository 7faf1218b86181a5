package policy

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

var update = flag.Bool("update", false, "rewrite what the scripts in testdata expect")

// TestScripts runs testdata/*.txt. A script is made of lines:
//
//	worker NAME [block=N] [rank=N] [trust=T] [unavailable]   a worker, or a further rank of one; block is its engine's
//	index NAME[/RANK] [gpu=N] [cpu=N] [disk=N] [remote=N] [predicted=N]   tokens of the prompt it has
//	load NAME[/RANK] [requests=N] [prefill=N] [context=N] [processed=N]   context in engine blocks
//	route POLICY tokens=N [option …]      a request; tokens=?N: N estimated, not known
//	    → NAME/RANK BRANCH …              what is expected, indented; rewritten with -update
//
// Options of route: target=NAME rank=N exclude=NAME,NAME limit=N turn=N random=N imbalance=N weights=G,C,D,R.
// A state is what the lines above it said; `worker` starts a new fleet when a route came before.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in testdata (%v)", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(text))
			if got == string(text) {
				return
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("%s differs; run with -update and read the change.\n%s", file, firstDifference(string(text), got))
		})
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d:\n  want %q\n  got  %q", i+1, w[i], g[i])
		}
	}
	return "one is longer"
}

const indent = "    "

// runScript returns the script with the expectations that hold.
func runScript(t *testing.T, text string) string {
	var out strings.Builder
	var s script
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if strings.HasPrefix(line, indent) {
			continue // an expectation: written anew
		}
		out.WriteString(line + "\n")
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if len(words) < 2 {
			t.Fatalf("line %d: %q says too little", n+1, line)
		}
		result, err := s.run(words[0], words[1], words[2:])
		if err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		out.WriteString(result)
	}
	return out.String()
}

// script is the state that a script's lines describe.
type script struct {
	candidates []Candidate
	workers    []*fleet.Worker
	routed     bool
}

func (s *script) run(command, name string, options []string) (string, error) {
	switch command {
	case "worker":
		if s.routed {
			*s = script{}
		}
		return "", s.worker(name, options)
	case "index", "load":
		c, err := s.find(name)
		if err != nil {
			return "", err
		}
		return "", eachOption(options, func(key, value string) error { return setCandidate(c, key, value) })
	case "route":
		s.routed = true
		return s.route(name, options)
	}
	return "", fmt.Errorf("unknown command %q", command)
}

func (s *script) worker(name string, options []string) error {
	c := Candidate{Holder: fleet.Holder(len(s.candidates)), BlockSize: 16, Available: true, Trust: fleet.TrustExact}
	c.Hash = mix(uint64(c.Holder))
	for _, w := range s.workers {
		if w.URL == "http://"+name {
			c.Worker = w
		}
	}
	if c.Worker == nil {
		c.Worker = &fleet.Worker{ID: fleet.WorkerID(len(s.workers)), URL: "http://" + name}
		s.workers = append(s.workers, c.Worker)
	}
	err := eachOption(options, func(key, value string) error { return setCandidate(&c, key, value) })
	s.candidates = append(s.candidates, c)
	return err
}

func (s *script) find(name string) (*Candidate, error) {
	for i := range s.candidates {
		c := &s.candidates[i]
		if label(c) == name || (c.Rank == 0 && label(c) == name+"/0") {
			return c, nil
		}
	}
	return nil, fmt.Errorf("no worker is called %q", name)
}

func label(c *Candidate) string {
	return fmt.Sprintf("%s/%d", strings.TrimPrefix(c.Worker.URL, "http://"), c.Rank)
}

func eachOption(options []string, set func(key, value string) error) error {
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		if err := set(key, value); err != nil {
			return fmt.Errorf("option %q: %w", o, err)
		}
	}
	return nil
}

func setCandidate(c *Candidate, key, value string) error {
	switch key {
	case "unavailable":
		c.Available = false
		return nil
	case "trust":
		for l := fleet.TrustNone; l <= fleet.TrustExact; l++ {
			if l.String() == value {
				c.Trust = l
				return nil
			}
		}
		return fmt.Errorf("no such trust")
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		return err
	}
	switch key {
	case "block":
		c.BlockSize = n
	case "rank":
		c.Rank = n
	case "gpu", "cpu", "disk", "remote":
		tier := block.Tier(slices.Index([]string{"gpu", "cpu", "disk", "remote"}, key))
		c.Tier[tier] = n
		c.Match += n
		c.Predicted = max(c.Predicted, c.Match)
	case "predicted":
		c.Predicted = n
	case "requests":
		c.Load.Requests = int64(n)
	case "prefill":
		c.Load.PrefillTokens = int64(n)
	case "context":
		c.Load.ContextBlocks = int64(n)
	case "processed":
		c.Load.Processed = uint64(n)
	default:
		return fmt.Errorf("unknown")
	}
	return nil
}

func (s *script) route(name string, options []string) (string, error) {
	spec, err := builtIn(name)
	if err != nil {
		return "", err
	}
	q := Query{Rank: -1, Known: true}
	if err := eachOption(options, func(key, value string) error { return s.setQuery(&q, &spec, key, value) }); err != nil {
		return "", err
	}
	p, err := Build(spec)
	if err != nil {
		return "", err
	}
	c := slices.Clone(s.candidates)
	return tell(&q, c, p.Choose(&q, c)), nil
}

func builtIn(name string) (Spec, error) {
	for _, s := range BuiltIn() {
		if s.Name == name {
			return s, nil
		}
	}
	return Spec{}, fmt.Errorf("no built-in policy is called %q", name)
}

func (s *script) setQuery(q *Query, spec *Spec, key, value string) error {
	switch key {
	case "target":
		q.Target = value
		return nil
	case "exclude":
		for _, name := range strings.Split(value, ",") {
			c, err := s.find(name)
			if err != nil {
				return err
			}
			q.Exclude = append(q.Exclude, c.Worker.ID)
		}
		return nil
	case "weights":
		for i, w := range strings.Split(value, ",") {
			var err error
			if spec.TierWeights[i], err = strconv.ParseFloat(w, 64); err != nil {
				return err
			}
		}
		return nil
	}
	value, estimated := strings.CutPrefix(value, "?")
	n, err := strconv.Atoi(value)
	if err != nil {
		return err
	}
	switch key {
	case "tokens":
		q.PromptTokens, q.Known = n, !estimated
	case "rank":
		q.Rank = n
	case "limit":
		q.MaxRequests = n
	case "turn":
		q.Turn = uint64(n)
	case "random":
		q.Random = uint64(n)
	case "imbalance":
		spec.ImbalanceTokens = n
	default:
		return fmt.Errorf("unknown")
	}
	return nil
}

// tell writes a choice the way scripts expect it: the chosen one and why, then each candidate by holder.
func tell(q *Query, c []Candidate, choice Choice) string {
	var out strings.Builder
	if choice.Index < 0 {
		fmt.Fprintf(&out, indent+"→ none: %s\n", choice.Branch.Reason())
	} else {
		fmt.Fprintf(&out, indent+"→ %s %s: %s\n", label(&c[choice.Index]), choice.Branch, choice.Branch.Reason())
	}
	byHolder := make([]int, len(c))
	for i := range c {
		byHolder[c[i].Holder] = i
	}
	for _, i := range byHolder {
		if c[i].Reason != "" {
			fmt.Fprintf(&out, indent+"  %-6s left out: %s\n", label(&c[i]), c[i].Reason)
			continue
		}
		mark, why := " ", ": "+choice.Why(c, i)
		if i == choice.Index {
			mark, why = "*", ""
		}
		fmt.Fprintf(&out, indent+"%s %-6s score %.4f, match %d, predicted %d, work %d + %d uncached%s\n", mark, label(&c[i]),
			c[i].Score, c[i].Match, c[i].Predicted, c[i].Work(), c[i].Uncached(q), why)
	}
	return out.String()
}
