// Command kvtrace replays KVTRACE1 workload files on Warmpath's index. The program peerbench replays the same files on
// the indexes of other projects (the peers). peerbench has the verbs verify, lookup, replay, apply, mem, conc, hash and
// timer, and prints the same lines for them. kvtrace also makes workload files. See ../README.md.
//
//	kvtrace make [flags]             write a workload file
//	kvtrace check FILE               compare a file's answers with the answers of a naive set
//	kvtrace verify FILE              compare the index's answers with the file's
//	kvtrace lookup FILE [ROUNDS]     measure lookups without events, beginning with prepared keys
//	kvtrace lookup-local FILE [ROUNDS]   the same, beginning with local hashes
//	kvtrace lookup-tokens FILE [ROUNDS]  the same, beginning with tokens
//	kvtrace replay FILE [ROUNDS]     measure each query at its place in the trace
//	kvtrace apply FILE [ROUNDS]      measure the application of events; SPLIT=n cuts events to n blocks
//	kvtrace mem FILE                 measure resident memory
//	kvtrace conc FILE RATE [ROUNDS]  measure lookups while a writer applies RATE block operations a second; 0: no limit
//	kvtrace hash                     measure hashing 8,192 tokens
//	kvtrace timer                    measure reading the clock
//	kvtrace table < LINES            compare the figures of Warmpath and of the peers (see compare.sh)
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

// player is a trace to replay, with its name for output lines.
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
