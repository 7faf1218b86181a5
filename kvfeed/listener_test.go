package kvfeed

import (
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/kvevent"
)

func TestTopicsOfEngines(t *testing.T) {
	for topic, want := range map[string]origin{
		"kv@10.0.0.7:8000@meta/llama": {address: "10.0.0.7:8000", model: "meta/llama"},
		"kv@[fd00::1]:8000@m@v1":      {address: "[fd00::1]:8000", model: "m@v1"},
		"kv@pod-1@m":                  {address: "pod-1", model: "m"},
	} {
		want.topic = topic
		if got, err := parseTopic(topic); err != nil || got != want {
			t.Errorf("parseTopic(%q) = %+v, %v", topic, got, err)
		}
	}
	for _, topic := range []string{"", "kv@", "kv@a", "kv@@m", "kv@a@", "kw@a@m", "kv-events"} {
		if _, err := parseTopic(topic); err == nil {
			t.Errorf("parseTopic(%q) accepted", topic)
		}
	}
}

// listening returns a rig whose feed runs and listens for engines.
func listening(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, Config{Stream: quick, Listen: anyPort})
	r.run()
	r.eventually("listening", func() bool { return !strings.HasSuffix(r.feed.ListenEndpoint(), ":0") })
	return r
}

// dialling returns a publisher that connects to the rig's feed with this topic, and a function that disconnects it.
func (r *rig) dialling(topic string) (p *mockengine.Publisher, stop func()) {
	r.t.Helper()
	return publish(r.t.(*testing.T), mockengine.PublisherConfig{Endpoint: r.feed.ListenEndpoint(), Connect: true, Topic: topic})
}

// stats returns the statistics of a rank's stream. ok is false if the rank is not followed.
func (r *rig) stats(worker string, rank int) (st Stats, ok bool) {
	for _, st := range r.feed.Stats() {
		if st.Worker == worker && st.Rank == rank {
			return st, true
		}
	}
	return Stats{}, false
}

func TestEachRankThatDialsIsFollowed(t *testing.T) {
	r := listening(t)
	type place struct {
		worker, topic string
		rank          int
	}
	places := []place{
		{"http://10.0.0.1:8000", "kv@10.0.0.1:8000@m", 0},
		{"http://10.0.0.1:8000", "kv@10.0.0.1:8000@m", 1}, // all ranks of a worker have the same topic
		{"http://10.0.0.2:8000", "kv@10.0.0.2@m", 0},      // the topic has the worker's host without the port
	}
	f := facts(fleet.EngineVLLM, 16)
	r.fleet.Put(places[2].worker, f)
	f.Ranks = 2
	r.fleet.Put(places[0].worker, f)
	var stop func()
	for i, at := range places {
		var p *mockengine.Publisher
		p, stop = r.dialling(at.topic)
		send := func(e kvevent.Event) {
			p.Publish(wire(t, "vllm-0.32.0", &kvevent.Batch{HasRank: true, Rank: at.rank, Events: []kvevent.Event{e}}))
		}
		r.eventually("a message", func() bool {
			send(kvevent.Event{Kind: kvevent.Cleared, Group: -1})
			st, _ := r.stats(at.worker, at.rank)
			return st.Cleared > 0
		})
		for n := range i + 1 {
			send(stored(n, 0, 32, 16))
		}
		r.eventually("its blocks", func() bool {
			st, _ := r.stats(at.worker, at.rank)
			return st.Stored == uint64(i+1) && st.Connected && st.Trust == fleet.TrustExact
		})
	}
	stop()
	last := places[2]
	r.eventually("the end", func() bool { _, ok := r.stats(last.worker, last.rank); return !ok })
	p, _ := r.dialling(last.topic)
	r.eventually("a new connection", func() bool {
		p.Publish(vllm(t, stored(1, 0, 32, 16)))
		st, ok := r.stats(last.worker, last.rank)
		return ok && st.Stored > 0
	})
}

// If an engine that dials loses messages, its statistics show this as they do for other engines.
func TestMessagesThatAnEngineThatDialsLosesAreCounted(t *testing.T) {
	r := listening(t)
	r.fleet.Put(workerURL, facts(fleet.EngineVLLM, 16))
	p, _ := r.dialling("kv@127.0.0.1:8000@m")
	r.eventually("a message", func() bool {
		p.Publish(vllm(t, stored(1, 0, 32, 16)))
		st, ok := r.stats(workerURL, 0)
		return ok && st.Stored > 0
	})
	before, _ := r.stats(workerURL, 0)
	p.DropNext(2)
	for range 3 {
		p.Publish(vllm(t, stored(2, 0, 32, 16)))
	}
	r.eventually("the loss", func() bool {
		st, _ := r.stats(workerURL, 0)
		return st.Gaps == before.Gaps+1 && st.Lost == before.Lost+2
	})
	r.trust(0, fleet.TrustDegraded, "are lost")
	if r.match(prompt(1, 48)) != 0 || r.match(prompt(2, 48)) != 32 {
		t.Error("the blocks from before the loss are not forgotten, or those after it are not known")
	}
}

// An engine may publish before its worker is in the fleet, or while the worker changes. Such messages count as missing.
func TestMessagesThatCameBeforeTheWorkerWasKnownAreMissing(t *testing.T) {
	r := listening(t)
	p, _ := r.dialling("kv@127.0.0.1:8000@m")
	p.DropNext(1) // if message 0 came and the worker were known in time, the history would be whole
	r.eventually("a subscription", func() bool {
		p.Publish(vllm(t, stored(1, 0, 32, 16)))
		return p.Stats().Sent > 3
	})
	f := facts(fleet.EngineVLLM, 16)
	for _, version := range []string{"0.32.0", "0.33.0"} {
		f.Version = version
		r.fleet.Put(workerURL, f)
		r.eventually("a message after version "+version, func() bool {
			p.Publish(vllm(t, stored(2, 0, 32, 16)))
			st, ok := r.stats(workerURL, 0)
			return ok && st.Stored > 0 && r.match(prompt(2, 48)) == 32
		})
		r.eventually("degraded", r.hasTrust(0, fleet.TrustDegraded, "history before message"))
	}
}

func TestATopicThatNamesNoWorkerIsLoggedOnce(t *testing.T) {
	r := listening(t)
	p, _ := r.dialling("kv@nonsense")
	r.eventually("several messages", func() bool {
		p.Publish(vllm(t, stored(1, 0, 32, 16)))
		return p.Stats().Sent > 5 && strings.Contains(r.log.String(), `kv@nonsense`)
	})
	if n := strings.Count(r.log.String(), "KV events of an engine that dialled us are refused"); n != 1 || len(r.feed.Stats()) != 0 {
		t.Errorf("%d warnings, streams %+v", n, r.feed.Stats())
	}
}

func TestListenerThatCannotListenIsAnError(t *testing.T) {
	p, _ := publish(t, mockengine.PublisherConfig{Endpoint: anyPort})
	for _, endpoint := range []string{p.Endpoint(), "tcp://nowhere"} {
		r := newRig(t, Config{Listen: endpoint})
		if err := r.feed.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "listen for KV events") {
			t.Errorf("%s: error %v", endpoint, err)
		}
	}
}
