package connector

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
)

var update = flag.Bool("update", false, "rewrite what the scripts in testdata expect")

// TestScripts plays the scripts testdata/NAME.txt, which show what the connector of that name writes. A script has
// these lines:
//
//	prefill URL [host=H] [port=N] [rank=N] [ranks=N] [first=N] [engines=ID,ID] [tp=N] [pp=N]   the worker of that leg
//	decode URL [the same]
//	chat BODY, completion BODY [prompts=N before BODY]
//	    a client's request, with the id R1, R2, … and the room 100, 200, …
//	    → prefill BODY                    what is sent to the worker of the leg; indented, rewritten with -update
//	answer BODY                           the answer of the prefill leg; what is sent then
//	kept BODY                             the answer of the decode leg; what is kept of it for the next turn
//	release BODY                          BODY is to say that nobody reads what was kept
//	fetch [BODY]                          the request, or BODY, is to read what was kept, or what the other worker has
//	abort prefill|decode                  how the leg is aborted
//	foreign BODY                          whether a client may send that
func TestScripts(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name+".txt")
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("each connector has a script that shows what it writes: %v", err)
			}
			c, _ := Find(name)
			s := script{t: t, c: c}
			got := s.run(string(text))
			if got == string(text) {
				return
			}
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("%s differs; run with -update and read the change. It would be:\n%s", path, got)
		})
	}
}

const indent = "    "

type script struct {
	t        *testing.T
	c        *Connector
	out      strings.Builder
	pair     Pair
	requests int
	body     string
	answer   []byte
	kept     []byte
}

// run plays a script and returns it with what is really written.
func (s *script) run(text string) string {
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if strings.HasPrefix(line, indent) {
			continue
		}
		s.out.WriteString(line + "\n")
		if word, rest, _ := strings.Cut(line, " "); word != "" && !strings.HasPrefix(line, "#") {
			s.line(word, rest)
		}
	}
	return s.out.String()
}

func (s *script) line(word, rest string) {
	switch word {
	case "prefill":
		s.pair.Prefill = s.end(rest)
	case "decode":
		s.pair.Decode = s.end(rest)
	case "chat", "completion":
		s.request(word, rest)
	case "answer":
		s.answer = []byte(rest)
		s.show("decode")(s.c.AppendDecode(nil, []byte(s.body), &s.pair, s.answer))
	case "kept":
		kept, ok := s.c.Kept([]byte(rest), s.pair.Chat)
		if s.kept = kept.Params; !ok {
			s.say("nothing is kept")
			return
		}
		s.say("kept for %v: %d tokens in %d blocks: %s", kept.Lasts, len(kept.Tokens), kept.Blocks, kept.Params)
	case "fetch":
		if rest == "" {
			rest = s.body
		}
		s.show("fetch")(s.c.AppendFetch(nil, []byte(rest), &s.pair, s.kept))
	case "release":
		s.show("release")(s.c.AppendRelease(nil, []byte(rest), &s.pair, s.kept))
	case "abort":
		leg := map[string]fleet.Leg{"prefill": fleet.LegPrefill, "decode": fleet.LegDecode}[rest]
		if method, path, body, ok := s.c.Abort(leg, &s.pair, s.answer); ok {
			s.say("%s %s %s", method, path, body)
			return
		}
		s.say("the connection is closed")
	case "foreign":
		if field, found := Foreign([]byte(rest)); found {
			s.say("refused: %s", field)
			return
		}
		s.say("passes")
	default:
		s.t.Fatalf("unknown line %q", word)
	}
}

func (s *script) request(kind, rest string) {
	s.requests++
	s.pair.RequestID, s.pair.Room = "R"+strconv.Itoa(s.requests), uint64(100*s.requests)
	s.pair.Batch, s.pair.Chat, s.answer = 1, kind == "chat", nil
	if option, body, ok := strings.Cut(rest, " "); ok && strings.HasPrefix(option, "prompts=") {
		s.pair.Batch, _ = strconv.Atoi(strings.TrimPrefix(option, "prompts="))
		rest = body
	}
	s.body = rest
	s.show("prefill")(s.c.AppendPrefill(nil, []byte(s.body), &s.pair))
	if s.c.Together() {
		s.show("decode")(s.c.AppendDecode(nil, []byte(s.body), &s.pair, nil))
	}
}

// show returns a function that writes a body, or the error in its place.
func (s *script) show(what string) func(body []byte, err error) {
	return func(body []byte, err error) {
		if err != nil {
			s.say("no %s: %v", what, err)
			return
		}
		if !json.Valid(body) {
			s.t.Errorf("not JSON: %s", body)
		}
		s.say("%s %s", what, body)
	}
}

func (s *script) say(form string, values ...any) {
	s.out.WriteString(indent + "→ " + fmt.Sprintf(form, values...) + "\n")
}

func (s *script) end(line string) End {
	words := strings.Fields(line)
	e := End{URL: words[0], Ranks: 1}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		n, _ := strconv.Atoi(value)
		switch name {
		case "host":
			e.Transfer.Host = value
		case "port":
			e.Transfer.Port = n
		case "rank":
			e.Rank = n
		case "ranks":
			e.Ranks = n
		case "first":
			e.FirstRank = n
		case "engines":
			e.Transfer.EngineIDs = strings.Split(value, ",")
		case "tp":
			e.Transfer.TensorParallel = n
		case "pp":
			e.Transfer.PipelineParallel = n
		default:
			s.t.Fatalf("unknown option %q", word)
		}
	}
	return e
}
