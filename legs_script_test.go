package warmpath_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

var update = flag.Bool("update", false, "rewrite what testdata/legs.txt expects")

// TestLegsScript runs testdata/legs.txt. The script is made of lines:
//
//	worker NAME [role=R] [connector=C] [bytes=N] [blocks=N] [node=N] [zone=N] [nvlink=N] [fetches] [legsonly]
//	    a worker; connector: nixl by default, none for none; bytes: of a token's KV; fetches: it reads blocks of others;
//	    legsonly: it serves no whole request
//	settings [mode=M] [threshold=N] [prefill=POLICY] [decode=POLICY]
//	index NAME tokens=N                 the first tokens of the prompt are cached there
//	load NAME requests=N                requests whose answers are under way there
//	link NAME NAME tokens=N ms=N        a transfer that was measured
//	failed NAME NAME times=N            transfers that failed
//	route tokens=N [choices=N] [target=NAME] [exclude=NAME,NAME] [policy=P] [undivided=REASON] [readable=NAME:N]
//	    → the expected decision, indented; rewritten with -update. Its request is not sent.
//	wait 5s
//
// A worker line after another kind of line starts a new fleet.
func TestLegsScript(t *testing.T) {
	const file = "testdata/legs.txt"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := legsScript{t: t}
	var out strings.Builder
	for n, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		if strings.HasPrefix(line, "    ") {
			continue
		}
		out.WriteString(line + "\n")
		if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
			s.line = n + 1
			out.WriteString(s.run(words[0], words[1:]))
		}
	}
	if got := out.String(); got != string(text) {
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Errorf("%s differs; run with -update and read the change", file)
	}
}

type legsScript struct {
	t      *testing.T
	line   int
	w      *world
	legs   warmpath.Legs
	names  map[string]fleet.WorkerID
	facts  []fleet.Facts
	order  []string
	now    int64
	sealed bool // the fleet is complete
}

// options reads the words KEY=VALUE of a line. A word without a value has the value "".
func (s *legsScript) options(words []string, known ...string) map[string]string {
	o := map[string]string{}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		if !slices.Contains(known, key) {
			s.t.Fatalf("line %d: unknown option %q", s.line, w)
		}
		o[key] = value
	}
	return o
}

func (s *legsScript) number(o map[string]string, key string) int {
	if o[key] == "" {
		return 0
	}
	n, err := strconv.Atoi(o[key])
	if err != nil {
		s.t.Fatalf("line %d: %s: %v", s.line, key, err)
	}
	return n
}

func (s *legsScript) run(verb string, words []string) string {
	switch verb {
	case "worker":
		if s.sealed || s.names == nil {
			*s = legsScript{t: s.t, line: s.line, names: map[string]fleet.WorkerID{}, now: second}
		}
		s.worker(words[0], s.options(words[1:], "role", "connector", "bytes", "blocks", "node", "zone", "nvlink", "fetches", "legsonly"))
		return ""
	case "settings":
		s.seal()
		o := s.options(words, "mode", "threshold", "prefill", "decode")
		if o["mode"] != "" {
			if err := s.legs.Mode.UnmarshalText([]byte(o["mode"])); err != nil {
				s.t.Fatal(err)
			}
		}
		s.legs.UncachedTokenThreshold, s.legs.PrefillPolicy, s.legs.DecodePolicy = s.number(o, "threshold"), o["prefill"], o["decode"]
		if err := s.w.router.ChangePolicies(warmpath.PolicyChange{Standard: "marginal", Legs: s.legs}); err != nil {
			s.t.Fatalf("line %d: %v", s.line, err)
		}
		return ""
	}
	s.seal()
	switch verb {
	case "index":
		o := s.options(words[1:], "tokens")
		s.w.store(s.holder(words[0]), prompt(1, s.number(o, "tokens")), kvindex.Stored{})
	case "load":
		s.w.loads(s.holder(words[0]), s.number(s.options(words[1:], "requests"), "requests"))
	case "link":
		o := s.options(words[2:], "tokens", "ms")
		s.w.fleet.Transferred(s.at(words[0]), s.at(words[1]), s.number(o, "tokens"), time.Duration(s.number(o, "ms"))*time.Millisecond)
	case "failed":
		for range s.number(s.options(words[2:], "times"), "times") {
			s.w.fleet.TransferFailed(s.at(words[0]), s.at(words[1]), s.now)
		}
	case "wait":
		d, err := time.ParseDuration(words[0])
		if err != nil {
			s.t.Fatal(err)
		}
		s.now += int64(d)
	case "route":
		return s.route(s.options(words, "tokens", "choices", "target", "exclude", "policy", "undivided", "readable"))
	default:
		s.t.Fatalf("line %d: unknown %q", s.line, verb)
	}
	return ""
}

func (s *legsScript) worker(name string, o map[string]string) {
	role, err := fleet.ParseRole(o["role"])
	if err != nil {
		s.t.Fatal(err)
	}
	f := serving(role)
	switch o["connector"] {
	case "":
	case "none":
		f.Transfer = fleet.Transfer{}
	default:
		f.Transfer.Connector = o["connector"]
	}
	if n := s.number(o, "bytes"); n > 0 {
		f.Transfer.TokenBytes = n
	}
	if n := s.number(o, "blocks"); n > 0 {
		f.BlocksPerRank = n
	}
	_, f.Transfer.Fetches = o["fetches"]
	_, f.Transfer.LegsOnly = o["legsonly"]
	f.Labels = map[string]string{}
	for _, label := range []string{fleet.LabelNode, fleet.LabelZone, fleet.LabelNVLink} {
		if o[label] != "" {
			f.Labels[label] = o[label]
		}
	}
	s.names[name] = fleet.WorkerID(len(s.order))
	s.order, s.facts = append(s.order, name), append(s.facts, f)
}

// seal makes the fleet.
func (s *legsScript) seal() {
	if !s.sealed {
		s.sealed = true
		s.w = newWorld(s.t, marginalOptions(policy.ModeAuto), s.facts...)
	}
}

func (s *legsScript) at(name string) *fleet.Worker {
	id, ok := s.names[name]
	if !ok {
		s.t.Fatalf("line %d: no worker %q", s.line, name)
	}
	return s.w.fleet.Snapshot().ByID(id)
}

func (s *legsScript) holder(name string) fleet.Holder { return s.at(name).Holders[0] }

func (s *legsScript) name(w *fleet.Worker) string { return s.order[w.ID] }

func (s *legsScript) route(o map[string]string) string {
	req := request(warmpath.Request{
		Tokens: prompt(1, s.number(o, "tokens")), Choices: s.number(o, "choices"), Policy: o["policy"], Undivided: policy.Bypass(o["undivided"]), Now: s.now,
	})
	if o["target"] != "" {
		req.Target = s.at(o["target"]).URL
	}
	for name := range strings.SplitSeq(o["exclude"], ",") {
		if name != "" {
			req.Exclude = append(req.Exclude, s.at(name).ID)
		}
	}
	if name, n, ok := strings.Cut(o["readable"], ":"); ok {
		tokens, err := strconv.Atoi(n)
		if err != nil {
			s.t.Fatal(err)
		}
		req.Readable = []warmpath.Readable{{Worker: s.at(name).ID, Tokens: tokens}}
	}
	d, err := s.w.router.Explain(context.Background(), req)
	if err != nil {
		return "    → " + err.Error() + "\n"
	}
	defer d.Recycle()
	var out strings.Builder
	part := func(leg *warmpath.Record) {
		fmt.Fprintf(&out, "    %-7s %s by %s, %s: match %d", leg.Leg, s.name(leg.Worker), leg.Policy, leg.Branch, leg.MatchTokens)
		if leg.Fetched > 0 {
			fmt.Fprintf(&out, ", fetches %d from %s", leg.Fetched, s.name(leg.Source))
		}
		for i := range leg.Candidates {
			if why := leg.Candidates[i].Reason; why != "" {
				fmt.Fprintf(&out, "; %s: %s", s.name(leg.Candidates[i].Worker), why)
			}
		}
		out.WriteString("\n")
	}
	n := d.Division
	switch {
	case d.Prefill != nil:
		fmt.Fprintf(&out, "    → %s → %s: transfer of %d tokens in %.0f ms; whole %.0f ms, prefill %.0f, decode %.0f\n",
			s.name(d.Prefill.Worker), s.name(d.Worker), n.Tokens, n.Transfer, n.Whole, n.Prefill, n.Decode)
		part(d.Prefill)
	case n.Whole > 0:
		fmt.Fprintf(&out, "    → %s alone, %s: whole %.0f ms, prefill %.0f, decode %.0f with %.0f for %d tokens\n",
			s.name(d.Worker), n.Bypass, n.Whole, n.Prefill, n.Decode, n.Transfer, n.Tokens)
	default:
		fmt.Fprintf(&out, "    → %s alone, %s\n", s.name(d.Worker), n.Bypass)
	}
	part(&d.Record)
	return out.String()
}

// TestEveryPairOfPoliciesDecidesBothLegs tries each built-in policy for the prefill leg with each for the decode leg.
func TestEveryPairOfPoliciesDecidesBothLegs(t *testing.T) {
	var names []string
	for _, spec := range warmpath.PolicyKinds().BuiltIn() {
		if !spec.NeedsTarget {
			names = append(names, spec.Name)
		}
	}
	for _, prefill := range names {
		for _, decode := range names {
			o := marginalOptions(policy.ModeAlways)
			o.Legs.PrefillPolicy, o.Legs.DecodePolicy = prefill, decode
			w := newWorld(t, o, serving(fleet.RolePrefill), serving(fleet.RolePrefill), serving(fleet.RoleDecode), serving(fleet.RoleDecode), serving(fleet.RoleBoth))
			for i := range 6 {
				d := w.route(warmpath.Request{Tokens: prompt(i%2, 900), Text: []byte("one text"), Now: second, Random: uint64(i)})
				if d.Prefill == nil {
					t.Fatalf("%s, %s: not divided: %+v", prefill, decode, d.Division)
				}
				a, b := d.Prefill, &d.Record
				if a.Policy != prefill || b.Policy != decode || !a.Worker.Facts.Prefills() || !b.Worker.Facts.Decodes() || a.Worker.ID == b.Worker.ID {
					t.Errorf("%s, %s: %s at %s, then %s at %s", prefill, decode, a.Policy, a.Worker.URL, b.Policy, b.Worker.URL)
				}
				d.PrefillDone(fleet.OutcomeServed, second)
				d.Done(fleet.OutcomeServed, second)
				d.Recycle()
			}
			for h := range fleet.Holder(5) {
				if n := w.fleet.Snapshot().Load(h).Requests; n != 0 {
					t.Errorf("%s, %s: %d requests left on holder %d", prefill, decode, n, h)
				}
			}
		}
	}
}
