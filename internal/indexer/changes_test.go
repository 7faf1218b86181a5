package indexer

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// line is a line of GET /changes or GET /dump.
type line struct {
	Kind   string
	Worker string `json:"instance_id"`
	Rank   int    `json:"dp_rank"`
	Tier   string
	Keys   []block.Key
	End    bool
	Error  string
}

// copied is a copy of the index that a program keeps: the blocks by rank and tier.
type copied map[string]map[block.Key]bool

func (c copied) at(l *line) map[block.Key]bool {
	name := fmt.Sprint(l.Worker, " ", l.Rank, " ", l.Tier)
	if c[name] == nil {
		c[name] = map[block.Key]bool{}
	}
	return c[name]
}

// apply applies a change, as docs/index-service.md says.
func (c copied) apply(l *line) {
	switch l.Kind {
	case "added":
		for _, k := range l.Keys {
			c.at(l)[k] = true
		}
	case "dropped":
		for _, k := range l.Keys {
			delete(c.at(l), k)
		}
	case "cleared":
		clear(c.at(l))
	case "forgotten":
		for _, tier := range []string{"gpu", "cpu", "disk", "remote"} {
			clear(c.at(&line{Worker: l.Worker, Rank: l.Rank, Tier: tier}))
		}
	}
}

// read returns the next line of an answer.
func read(t *testing.T, r *bufio.Reader) *line {
	t.Helper()
	text, err := r.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	l := new(line)
	if err := json.Unmarshal(text, l); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return l
}

// open opens an answer without an end.
func (w *world) open(path string) *bufio.Reader {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		cancel()
		_ = resp.Body.Close()
	})
	return bufio.NewReader(resp.Body)
}

// dumped returns the index as a dump shows it.
func (w *world) dumped(t *testing.T) copied {
	t.Helper()
	c := copied{}
	for r := w.open("/dump?model_name=m"); ; {
		l := read(t, r)
		switch {
		case l.End:
			return c
		case l.Error != "":
			t.Fatal(l.Error)
		}
		l.Kind = "added"
		c.apply(l)
	}
}

// A stream of changes that begins before a dump, applied to the dump, gives the index as it is now.
func TestADumpAndTheChangesSinceThenAreTheIndex(t *testing.T) {
	w := serve(t, Config{}, nil)
	a := w.worker("http://a", func(f *fleet.Facts) { f.Ranks = 2 })
	b := w.worker("http://b", nil)
	step := func(i int) {
		p := prompt(i%7, 320)
		switch h := a.Holders[i%2]; i % 5 {
		case 0, 1, 2:
			w.store(h, p[:64+16*(i%9)], kvindex.Stored{Tier: block.Tier(i % 2)})
			if i%4 == 0 {
				w.router.Remove(h, warmpath.Removed{Tier: block.Tier(i % 2), Hashes: []uint64{hashOf(block.Scope{}, p[63])}})
			}
		case 3:
			w.store(b.Holders[0], p, kvindex.Stored{})
		case 4:
			if i%20 == 4 {
				w.router.Clear(h, block.TierCPU)
			}
			if i%35 == 34 {
				w.router.Forget(h)
			}
		}
	}
	for i := range 40 {
		step(i)
	}
	changes := w.open("/changes?model_name=m")
	if l := read(t, changes); l.Kind != "begin" {
		t.Fatalf("the stream begins with %q", l.Kind)
	}
	for i := 40; i < 80; i++ {
		step(i)
	}
	mine := w.dumped(t)
	for i := 80; i < 160; i++ {
		step(i)
	}
	w.store(b.Holders[0], prompt(99, 16), kvindex.Stored{}) // the last change
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		t.Fatal(err)
	}
	last := h.Append(nil, h.Root(block.Scope{Model: "m"}), 0, prompt(99, 16), nil)[0]
	for done := false; !done; {
		l := read(t, changes)
		mine.apply(l)
		done = l.Kind == "added" && len(l.Keys) == 1 && l.Keys[0] == last
	}
	now := w.dumped(t)
	for name := range mine {
		if len(mine[name]) == 0 {
			delete(mine, name)
		}
	}
	if len(now) < 3 || !maps.EqualFunc(mine, now, func(a, b map[block.Key]bool) bool { return maps.Equal(a, b) }) {
		t.Errorf("the copy has %d places, the index %d", len(mine), len(now))
		for name, keys := range now {
			t.Logf("%s: %d blocks, the copy has %d", name, len(keys), len(mine[name]))
		}
	}
}

// The index never waits for a reader.
func TestASlowReaderLosesItsStream(t *testing.T) {
	w := serve(t, Config{}, nil)
	a := w.worker("http://a", nil)
	w.changes.behind = 1 << 20
	slow := w.changes.read()
	defer slow.close()
	p := prompt(1, 256*16)
	for i := range w.changes.behind / (256 * 16) {
		w.store(a.Holders[0], p, kvindex.Stored{Scope: block.Scope{Salt: fmt.Sprint(i)}})
	}
	var kinds []changeKind
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lost, err := slow.follow(ctx, selection{}, func(c *change) error {
		kinds = append(kinds, c.kind)
		return nil
	}, func() error { return nil })
	if !lost || err != nil || len(kinds) != 1 || kinds[0] != changeLost {
		t.Errorf("%v, %v, after %v", lost, err, kinds)
	}
	if line := string((&change{kind: changeLost}).appendJSON(nil)); !strings.Contains(line, "begin again") || !json.Valid([]byte(line)) {
		t.Error(line)
	}
}

func TestStreamsAndDumpsAreBounded(t *testing.T) {
	w := serve(t, Config{}, nil)
	w.worker("http://a", nil)
	for range maxReaders {
		r := w.changes.read()
		defer r.close()
	}
	if status, text := w.ask("GET", "/changes", ""); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, text)
	}
	w.service.dumping <- struct{}{}
	if status, text := w.ask("GET", "/dump", ""); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, text)
	}
	<-w.service.dumping
	for path, want := range map[string]int{"/dump?model_name=other": 404, "/dump?instance_id=other": 404, "/dump?tenant_id=a&routing_group=b": 400, "/dump": 200} {
		if status, text := w.ask("GET", path, ""); status != want {
			t.Errorf("%s: %d %s, want %d", path, status, text, want)
		}
	}
}

// Streams last for hours, so they must leave room for questions where few connections may be open.
func TestStreamsLeaveConnectionsForQuestions(t *testing.T) {
	w := serve(t, Config{}, func(p *Parts) { p.Connections.Readers = 2 })
	for range 2 {
		defer w.changes.read().close()
	}
	if status, text := w.ask("GET", "/changes", ""); status != http.StatusServiceUnavailable || !strings.Contains(text, "2 streams of changes") {
		t.Errorf("%d %s", status, text)
	}
	if most := serve(t, Config{}, func(p *Parts) { p.Connections.Readers = 1000 }).changes.most; most != maxReaders {
		t.Errorf("%d streams may be read", most)
	}
}

// A last change of a worker comes after it left.
func TestAChangeOfAWorkerThatLeftHasItsName(t *testing.T) {
	w := serve(t, Config{}, nil)
	a := w.worker("http://a", nil)
	w.store(a.Holders[0], prompt(1, 64), kvindex.Stored{})
	changes := w.open("/changes")
	read(t, changes)
	w.fleet.Remove(a.ID)
	w.router.Forget(a.Holders[0])
	for {
		if l := read(t, changes); l.Kind == "forgotten" {
			if l.Worker != "http://a" {
				t.Errorf("%+v", l)
			}
			return
		}
	}
}
