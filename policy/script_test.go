package policy_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/peers"
)

var update = flag.Bool("update", false, "rewrite what the scripts in testdata expect")

// folders are the folders of scripts. Each folder has the scripts of one package's kinds of policies.
var folders = []struct {
	path  string
	kinds policy.Kinds
}{{"testdata", policy.Own()}, {"peers/testdata", peers.Kinds()}}

// TestScripts runs testdata/*.txt, and peers/testdata/*.txt for the policies of package peers. A script is made of
// lines:
//
//	worker NAME [block=N] [rank=N] [trust=T] [unavailable] [node=NAME] [zone=NAME] [adapter=NAME …] [hash=N] [blocks=N]
//	    a worker, or another rank of a worker; block: tokens of its engine's block; blocks: size of its cache
//	index NAME[/RANK] [gpu=N] [cpu=N] [disk=N] [remote=N] [predicted=N] [active=N]
//	    tokens of the prompt that the worker has, by tier
//	load NAME[/RANK] [requests=N] [prefill=N] [pending=N] [context=N] [processed=N] [waiting=N] [output=N]
//	    [filled=N%]
//	    context in engine blocks; filled: the share of the cache that has blocks, none of which were evicted yet
//	underway NAME[/RANK] [levels=L,L] [waited=D] [since=D] [waiting=D] [output=N] [most=N] [times=N]
//	    requests with service levels that are under way there: levels, by default 5s/100ms,2s/50ms; waited: from arrival to
//	    now, or to the first token; since: from the first token to now; waiting: the first token comes after that time;
//	    output: tokens so far; most: limit of tokens; times: so many such requests
//	reported NAME[/RANK] [running=N] [queued=N] [kv=N%]   its engine's report, made at the present time
//	asked NAME [keys=N] [tokens=N]        the answer of an external source about the worker; keys: all chunks that it has
//	    cached; tokens: how many tokens of the prompt it has cached
//	route POLICY[:KEY=VALUE,…] tokens=N [option …]   a request that is sent; tokens=?N: N estimated, not known
//	    → NAME/RANK BRANCH …              the expected choice, indented; rewritten with -update
//	explain POLICY …                      the same as route, but the request is not sent, so the policy learns nothing
//	finished NAME[/RANK] [failed]         the oldest request that was sent there ended
//	forget NAME[/RANK]                    the worker's cache is lost, or the worker left
//	wait 5s                               time passes
//
// Options of route: target=NAME rank=N exclude=NAME,NAME limit=N turn=N random=N imbalance=N weights=G,C,D,R
// session=KEY tenant=NAME model=NAME lora=NAME levels=L,L waited=D (service levels, and the time since the request
// arrived); text="…" or text="…"*N: the prompt as text, N times;
// prompt=NAME:N,NAME:N: the prompt as tokens, the first N of each named text, with its keys in blocks of 16.
//
// Each line describes a change of the state. A worker line after a route or explain line starts a new fleet, with new
// policies. Two lines use the same policy, with its memory, if the name and the parameters are the same.
func TestScripts(t *testing.T) {
	var files []string
	for _, folder := range folders {
		found, err := filepath.Glob(folder.path + "/*.txt")
		if err != nil || len(found) == 0 {
			t.Fatalf("no scripts in %s (%v)", folder.path, err)
		}
		files = append(files, found...)
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

// TestEachKindHasAScript: the scripts are the specification of the policies.
func TestEachKindHasAScript(t *testing.T) {
	for _, folder := range folders {
		for _, k := range folder.kinds {
			text, err := os.ReadFile(filepath.Join(folder.path, k.Name+".txt"))
			if err != nil {
				t.Error(err)
			} else if !strings.Contains(string(text), "\nroute "+k.Name) {
				t.Errorf("%s/%s.txt routes nothing by %s", folder.path, k.Name, k.Name)
			}
		}
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

// runScript runs a script and returns it with the actual choices in place of the expected ones.
func runScript(t *testing.T, text string) string {
	var out strings.Builder
	var s script
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if strings.HasPrefix(line, indent) {
			continue // a line of an expected choice: the actual choice is written instead
		}
		out.WriteString(line + "\n")
		words := fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if len(words) < 2 {
			t.Fatalf("line %d: %q has too few words", n+1, line)
		}
		result, err := s.run(words[0], words[1], words[2:])
		if err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		out.WriteString(result)
	}
	return out.String()
}

// fields splits a line at spaces that are not between quotes.
func fields(line string) []string {
	quoted := false
	return strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ' ' && !quoted
	})
}

// describe writes a choice in the form that scripts expect: the chosen candidate and the reason, then each candidate by
// holder.
func describe(q *policy.Query, c []policy.Candidate, choice policy.Choice, terms []string) string {
	var out strings.Builder
	if choice.Index < 0 {
		fmt.Fprintf(&out, indent+"→ none: %s\n", choice.Reason)
	} else {
		fmt.Fprintf(&out, indent+"→ %s %s: %s\n", label(&c[choice.Index]), choice.Branch, choice.Reason)
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
		mark, why := " ", ": "+choice.Why(q, c, i)
		if i == choice.Index {
			mark, why = "*", ""
		}
		fmt.Fprintf(&out, indent+"%s %-6s score %.4f%s, match %d, predicted %d, work %d + %d uncached%s\n", mark, label(&c[i]),
			c[i].Score, describeTerms(&c[i], terms), c[i].Match, c[i].Predicted, c[i].Work(), c[i].Uncached(q), why)
	}
	return out.String()
}

// describeTerms writes the terms of a score, if there is more than one.
func describeTerms(c *policy.Candidate, terms []string) string {
	if len(terms) < 2 {
		return ""
	}
	var parts []string
	for i, name := range terms {
		parts = append(parts, fmt.Sprintf("%s %.4g", name, c.Terms[i]))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}
