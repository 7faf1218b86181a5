// Command kvtrace replays KVTRACE1 workload files into Warmpath's index. Another harness runs other projects' indexes
// on the same files; kvtrace has the same verbs and prints the same lines. kvtrace also makes such files. See
// ../README.md.
//
//	kvtrace make [flags]                       write a workload file
//	kvtrace check FILE               compare a file's answers with those of a naive set
//	kvtrace verify FILE              compare the index's answers with the file's
//	kvtrace lookup FILE [ROUNDS]     time lookups without events, from prepared keys on
//	kvtrace lookup-local FILE [ROUNDS]   the same, from local hashes on
//	kvtrace lookup-tokens FILE [ROUNDS]  the same, from tokens on
//	kvtrace replay FILE [ROUNDS]     time each query at its place in the trace
//	kvtrace apply FILE [ROUNDS]      time events on one writer; SPLIT=n cuts them to n blocks
//	kvtrace mem FILE                 resident memory
//	kvtrace conc FILE RATE [ROUNDS]  lookups while a writer works; RATE in block operations/s, 0 saturated
//	kvtrace hash | timer                       hashing 8,192 tokens; what a clock costs
//	kvtrace table < LINES                      ratios of our lines and the peers' (see compare.sh)
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/warmpath/warmpath/bench/internal/feed"
	"github.com/warmpath/warmpath/bench/internal/trace"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kvtrace:", err)
		os.Exit(1)
	}
}

const usage = "give a verb: make, check, verify, lookup, lookup-local, lookup-tokens, replay, apply, mem, conc, hash, timer or table"

// replaying has the verbs that read a file into an index, by name.
var replaying = map[string]func(p *player, args []string) error{
	"verify":        verify,
	"lookup":        lookup,
	"lookup-local":  lookupLocal,
	"lookup-tokens": lookupTokens,
	"replay":        replay,
	"apply":         apply,
	"mem":           mem,
	"conc":          conc,
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	verb, args := args[0], args[1:]
	switch verb {
	case "make":
		return makeTrace(args)
	case "check":
		return check(args)
	case "hash":
		return hash()
	case "timer":
		return timer()
	case "table":
		return table(os.Stdin, os.Stdout)
	}
	do := replaying[verb]
	if do == nil {
		return fmt.Errorf("unknown verb %q: %s", verb, usage)
	}
	if len(args) == 0 {
		return fmt.Errorf("%s: name a file", verb)
	}
	t, err := trace.Open(args[0])
	if err != nil {
		return err
	}
	defer t.Close()
	p := &player{trace: t, name: "warmpath-kvindex"}
	if _, err := p.index(); err != nil {
		return err
	}
	return do(p, args[1:])
}

// player replays a trace.
type player struct {
	trace *trace.Trace
	name  string
}

func (p *player) index() (*feed.Index, error) { return feed.New(int(p.trace.BlockSize)) }

// load returns an index to which all events of the trace are applied.
func (p *player) load() (*feed.Index, error) {
	x, err := p.index()
	if err != nil {
		return nil, err
	}
	var e feed.Event
	r := p.trace.Reader()
	for r.Next() {
		if !r.Record.IsQuestion() {
			e = x.Event(&r.Record, &e)
			x.Apply(&e)
		}
	}
	return x, r.Err()
}

// rounds reads the optional argument args[i], the number of rounds.
func rounds(args []string, i, byDefault int) (int, error) {
	if len(args) <= i {
		return byDefault, nil
	}
	n, err := strconv.Atoi(args[i])
	if err != nil || n < 1 {
		return 0, fmt.Errorf("read number of rounds: %q is not a number above 0", args[i])
	}
	return n, nil
}
