package kvfeed

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
)

// sglangStored returns the event with which SGLang announces a prompt in the dynamo format: the event has SGLang's own
// hashes, and these also cover the request's keys (salt and extra_key).
func sglangStored(t *testing.T, tokens []block.Token, size int, extra, salt string) kvevent.Event {
	t.Helper()
	h, err := block.NewEngineHasher(block.EngineChain{Algorithm: block.SGLangSHA256, Size: size})
	if err != nil {
		t.Fatal(err)
	}
	e := kvevent.Event{Kind: kvevent.Stored, Group: -1, Medium: "GPU", BlockSize: size, Salt: salt, Tokens: tokens[:len(tokens)/size*size]}
	for _, d := range h.Append(nil, h.Root("", salt), e.Tokens, nil) {
		e.Hashes = append(e.Hashes, namespaced(h.Normal(d), extra, salt))
	}
	return e
}

func TestExtraKeysAreFoundInTheHashesOfTheDynamoFormat(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineSGLang, 16))
	with := func(extra, salt string) func(*warmpath.Request) {
		return func(q *warmpath.Request) { q.Extra, q.Salt = extra, salt }
	}
	seq := uint64(0)
	send := func(events ...kvevent.Event) {
		s.Message(seq, wire(t, "sglang-0.5.23", batch(events...)))
		seq++
	}
	r.feed.Scoped(s.url, s.rank, "", "a")
	r.feed.Scoped(s.url, s.rank, "tenant", "b")
	send(sglangStored(t, prompt(1, 64), 16, "a", ""), sglangStored(t, prompt(2, 64), 16, "", ""),
		sglangStored(t, prompt(3, 64), 16, "b", "tenant"), sglangStored(t, prompt(4, 64), 16, "never seen", ""))
	more := sglangStored(t, prompt(1, 96), 16, "a", "")
	more.HasParent, more.Parent = true, more.Hashes[3]
	more.Hashes, more.Tokens = more.Hashes[4:], more.Tokens[64:]
	send(more)
	for _, c := range []struct {
		conversation int
		extra, salt  string
		want         int
	}{
		{1, "a", "", 96}, {1, "", "", 0}, {1, "b", "", 0}, {1, "a", "tenant", 0},
		{2, "", "", 64}, {2, "a", "", 0},
		{3, "b", "tenant", 64}, {3, "b", "", 0}, {3, "", "tenant", 0},
		{4, "", "", 0}, {4, "never seen", "", 0},
	} {
		if got := r.match(prompt(c.conversation, 200), with(c.extra, c.salt)); got != c.want {
			t.Errorf("prompt %d with extra_key %q and salt %q matches %d tokens, want %d", c.conversation, c.extra, c.salt, got, c.want)
		}
	}
	r.trust(s.holder, fleet.TrustDegraded, "an extra_key that this router has not sent")
}

// In SGLang's default format the hash does not cover extra_key. After a request with an extra_key, the router cannot
// know which request an event belongs to, so it does not apply stored events.
func TestExtraKeysStayAmbiguousInTheDefaultFormat(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineSGLang, 16))
	r.feed.Scoped(s.url, s.rank, "", "a")
	s.Message(0, wire(t, "sglang-0.5.23", batch(sglangStored(t, prompt(1, 64), 16, "", ""))))
	if got := r.match(prompt(1, 200)); got != 0 {
		t.Errorf("%d tokens match", got)
	}
	r.trust(s.holder, fleet.TrustApproximate, "extra_key")
}

// An hour after a worker left, another worker may get the id of its holder. The router's memory of the keys (such as
// extra_key) that requests to a worker carried must stay with that worker.
func TestKeysOfRequestsStayWithTheirWorker(t *testing.T) {
	r := newRig(t, Config{})
	stored := func(s *stream) {
		s.Message(0, wire(t, "sglang-0.5.23", batch(sglangStored(t, prompt(1, 64), 16, "", ""))))
	}
	old := r.stream(facts(fleet.EngineSGLang, 16))
	r.feed.Scoped(old.url, old.rank, "", "a")
	leave := func(w fleet.WorkerID) {
		r.fleet.Remove(w)
		for _, at := range []time.Duration{0, 90 * time.Minute} {
			r.router.Reclaim(int64(at))
		}
	}
	leave(old.worker)

	other := r.fleet.Put("http://127.0.0.1:8001", facts(fleet.EngineSGLang, 16))
	s := r.follow(r.fleet.Snapshot().ByID(other))
	if s.holder != old.holder {
		t.Fatalf("the new worker has the id %d, want %d again", s.holder, old.holder)
	}
	if stored(s); r.match(prompt(1, 200)) != 64 {
		t.Errorf("%d tokens match at another worker, want 64", r.match(prompt(1, 200)))
	}
	leave(other)

	if stored(r.stream(facts(fleet.EngineSGLang, 16))); r.match(prompt(1, 200)) != 0 {
		t.Errorf("%d tokens match at the worker that came back, want 0: its requests carried an extra_key", r.match(prompt(1, 200)))
	}
}

// Pods come and go, each with an address of its own. The feed forgets the keys of requests to a worker when the fleet
// forgets the worker, not before.
func TestKeysOfWorkersThatTheFleetForgotAreForgotten(t *testing.T) {
	r := newRig(t, Config{})
	f := facts(fleet.EngineSGLang, 16)
	f.Models = append(f.Models, fleet.Model{ID: "adapter", Parent: f.Models[0].ID})
	r.fleet.Put("http://stays", f)
	r.feed.Scoped("http://stays", 0, "salt", "extra")
	const workers, batch = 6000, 500
	var now time.Duration
	for i := range workers {
		url := fmt.Sprint("http://pod-", i)
		id := r.fleet.Put(url, f)
		r.feed.Scoped(url, 0, "salt", "extra")
		r.fleet.Remove(id)
		if i%batch == batch-1 {
			for range 2 {
				r.router.Reclaim(int64(now))
				now += 2 * time.Hour
			}
			r.feed.look(time.Now())
		}
	}
	for name, places := range map[string]*sync.Map{"used": &r.feed.used, "extras": &r.feed.extras} {
		n := 0
		places.Range(func(any, any) bool { n++; return true })
		if n > 4096+1 {
			t.Errorf("%s: %d ranks are remembered, the fleet remembers 4,096 workers that left", name, n)
		}
	}
	lately := fmt.Sprint("http://pod-", workers-1)
	r.fleet.Put(lately, f)
	for _, url := range []string{"http://stays", lately} {
		if keys := kvevent.Keys(r.feed.keysOf(place{url, 0}).Load()); keys&kvevent.KeySalt == 0 || keys&kvevent.KeyExtra == 0 {
			t.Errorf("%s: the keys of its requests are forgotten", url)
		}
		if len(r.feed.extrasOf(place{url, 0}).values) != 1 {
			t.Errorf("%s: the extra_key of its requests is forgotten", url)
		}
	}
}

func TestFewExtraKeysAreRemembered(t *testing.T) {
	var x extras
	for i := range 100 {
		x.add(string(rune('a' + i)))
		x.add("kept")
	}
	x.add(string(make([]byte, 2000)))
	if len(x.values) != recentExtras {
		t.Errorf("%d values are remembered", len(x.values))
	}
	if got, ok := x.find(7, namespaced(7, "kept", "s"), "s"); !ok || got != "kept" {
		t.Errorf("found %q, %v", got, ok)
	}
	if _, ok := x.find(7, namespaced(7, "a", ""), ""); ok {
		t.Error("a value that was used long ago is still remembered")
	}
}
