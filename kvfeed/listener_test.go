package kvfeed

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/internal/zmtp"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestTopicsOfEngines(t *testing.T) {
	for topic, want := range map[string]topicOrigin{
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

// Some engines connect to the router's listener ("dial"). If such an engine loses messages, its statistics show the
// loss as for other engines.
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
		t.Error("the blocks from before the loss are not forgotten, or the blocks from after the loss are not known")
	}
}

// An engine may publish before its worker is in the fleet, or while the worker changes. Such messages count as missing.
func TestMessagesThatCameBeforeTheWorkerWasKnownAreMissing(t *testing.T) {
	r := listening(t)
	p, _ := r.dialling("kv@127.0.0.1:8000@m")
	p.DropNext(1) // without message 0 the history cannot be whole, even if the worker is known in time
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

// dialled returns a stream of an engine that has connected to the router, without a network.
func (r *rig) dialled() *incoming {
	return &incoming{feed: r.feed, topicOrigin: topicOrigin{"kv@127.0.0.1:8000@m", "127.0.0.1:8000", "m"}, peer: "peer"}
}

// says returns the frames of a message that announces 64 tokens of conversation c.
func (in *incoming) says(t *testing.T, seq uint64, c int) [][]byte {
	return liveMessage(in.topic, seq, string(vllm(t, stored(c, 0, 64, 16))))
}

// The engine may dial the router at the moment at which the router begins to dial the engine.
func TestTheStreamOfAnEngineThatDialsEndsWithItsWorker(t *testing.T) {
	r := newRig(t, Config{Stream: quick, Listen: anyPort})
	r.fleet.Put(workerURL, facts(fleet.EngineVLLM, 16))
	w := r.fleet.Snapshot().Workers()[0]
	dial := r.feed.newStream(w, w.Holders[0], fleet.EventSource{Endpoint: nobody(t)})
	in := r.dialled()
	if !in.receive(in.says(t, 0, 1)) {
		t.Fatal("the engine that dials is not followed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer r.feed.stopAll()
	defer cancel()
	r.feed.begin(ctx, dial)
	r.fleet.Remove(w.ID)
	r.feed.reconcile(ctx, r.fleet.Snapshot())
	if !in.follower.closed() {
		t.Error("the worker left, and its stream goes on")
	}
}

// atForget is a policy that calls a function when the router forgets a holder.
type atForget struct {
	policy.Chooser
	call func()
}

func (p atForget) Forget(fleet.Holder) { p.call() }

// An engine restarts: its old connection ends, and at the same time the first message comes on its new connection.
func TestTheEndOfAStreamForgetsNoBlockOfTheNextStream(t *testing.T) {
	r := newRig(t, Config{Stream: quick, Listen: anyPort})
	forgetting := func() {}
	var err error
	if r.router, err = warmpath.New(warmpath.Options{Fleet: r.fleet, Policy: policy.Spec{Name: "at forget", Chooser: func() policy.Chooser {
		return atForget{call: func() { forgetting() }}
	}}}); err != nil {
		t.Fatal(err)
	}
	r.feed = New(r.router, Config{Stream: quick, Listen: anyPort}, nil)
	r.fleet.Put(workerURL, facts(fleet.EngineVLLM, 16))
	old, next := r.dialled(), r.dialled()
	old.receive(old.says(t, 0, 1))
	forgetting = func() {
		forgetting = func() {} // a stream that begins forgets its holder, too
		if next.receive(next.says(t, 0, 2)) {
			t.Error("the next stream begins while its holder is being forgotten")
		}
	}
	old.disconnect(io.EOF)
	if !next.receive(next.says(t, 1, 2)) || r.feed.list()[0] != next.follower {
		t.Error("the next stream does not begin after the end of the old one")
	}
	r.feed.stopAll()
}

// An engine that the router dialled may be restarted with a publisher that dials the router.
func TestAnEngineThatDialsIsFollowedOnceItsOldEndpointIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{Listen: anyPort, Grace: 5 * time.Second})
		s := r.stream(facts(fleet.EngineVLLM, 16))
		ended := make(chan struct{})
		close(ended)
		r.feed.streams[s.holder] = &follower{stream: s, stop: func() {}, done: ended}
		in := r.dialled()
		if in.receive(in.says(t, 0, 1)) {
			t.Error("an engine is followed twice")
		}
		if !strings.Contains(r.log.String(), "another stream has the events of this engine") {
			t.Errorf("the log does not say that messages are refused:\n%s", r.log)
		}
		s.State(false, io.EOF)
		testenv.Pass(4 * time.Second)
		if in.receive(in.says(t, 1, 1)) {
			t.Error("the old stream ended before its grace was over")
		}
		testenv.Pass(2 * time.Second)
		if !in.receive(in.says(t, 2, 1)) || r.match(prompt(1, 100)) != 64 {
			t.Error("the engine that dials is not followed")
		}
		r.feed.stopAll()
	})
}

func TestATopicThatNamesAnotherWorkersModelIsRefused(t *testing.T) {
	r := newRig(t, Config{Listen: anyPort})
	r.fleet.Put(workerURL, facts(fleet.EngineVLLM, 16))
	other := facts(fleet.EngineVLLM, 16)
	other.Models = []fleet.Model{{ID: "other"}}
	r.fleet.Put("http://10.0.0.9:8000", other)
	for model, want := range map[string]int{"m": 1, "/a/path/of/m": 1, "other": 0} {
		c := r.connection()
		if n := c.send("kv@127.0.0.1:8000@" + model); n != want {
			t.Errorf("a topic of model %s has %d streams, want %d", model, n, want)
		}
		if want > 0 && r.feed.list()[0].renew.Load() {
			t.Errorf("a topic of model %s: the first message ends the stream", model)
		}
		c.listener.disconnect(c.peer, io.EOF)
	}
	if !strings.Contains(r.log.String(), "names a model that worker "+workerURL+" does not serve") {
		t.Errorf("the log does not say why a topic is refused:\n%s", r.log)
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

// connection is a connection of an engine to the router, without a network.
type connection struct {
	t        *testing.T
	listener *listener
	peer     *zmtp.Peer
	sent     uint64
}

func (r *rig) connection() *connection {
	c := &connection{r.t.(*testing.T), r.feed.listener, &zmtp.Peer{}, 0}
	c.listener.connect(c.peer)
	return c
}

// send delivers one message and returns the number of streams of the connection.
func (c *connection) send(topic string) (streams int) {
	payload := vllm(c.t, stored(1, 0, 32, 16))
	c.listener.receive(c.peer, [][]byte{[]byte(topic), binary.BigEndian.AppendUint64(nil, c.sent), payload})
	c.sent++
	return len(c.listener.links[c.peer])
}

// putPods puts workers with the addresses pod-0:8000, pod-1:8000 and so on into the fleet.
func (r *rig) putPods(n int) (ids []fleet.WorkerID) {
	for i := range n {
		ids = append(ids, r.fleet.Put(fmt.Sprintf("http://pod-%d:8000", i), facts(fleet.EngineVLLM, 16)))
	}
	r.feed.reconcile(r.t.Context(), r.fleet.Snapshot())
	return ids
}

func podTopic(i int) string { return fmt.Sprintf("kv@pod-%d:8000@m", i) }

// A client of the listener may send any number of topics, which contain addresses of workers. For a topic without a
// worker at its address, the router remembers nothing.
func TestTopicsWithoutAWorkerTakeNoMemoryAndNoStream(t *testing.T) {
	r := newRig(t, Config{Listen: anyPort})
	r.putPods(1)
	hostile := r.connection()
	for i := range 5000 {
		hostile.send(fmt.Sprintf("kv@%s%d", strings.Repeat("x", 1000), i))
		if n := hostile.send(fmt.Sprintf("kv@no-such-worker-%d@m", i)); n != 0 {
			t.Fatalf("%d topics without a worker are remembered", n)
		}
	}
	if n := r.connection().send(podTopic(0)); n != 1 || r.feed.listener.streams != 1 {
		t.Errorf("the connection of an engine has %d streams, all connections have %d, want 1", n, r.feed.listener.streams)
	}
}

func TestTheStreamsOfOneConnectionAreBounded(t *testing.T) {
	r := newRig(t, Config{Listen: anyPort})
	ids := r.putPods(fleet.MaxRanks + 2)
	hostile := r.connection()
	n := 0
	for i := range ids {
		n = hostile.send(podTopic(i))
	}
	if n != fleet.MaxRanks || !strings.Contains(r.log.String(), "streams of one connection") {
		t.Errorf("one connection has %d streams, want %d; or the log does not say so", n, fleet.MaxRanks)
	}
	engine := r.connection()
	if n := engine.send(podTopic(len(ids) - 1)); n != 1 {
		t.Errorf("an engine has %d streams while another connection has its greatest number", n)
	}

	// When a worker leaves, another worker's events may come on the same connection.
	r.fleet.Remove(ids[7])
	r.feed.reconcile(t.Context(), r.fleet.Snapshot())
	if n := hostile.send(podTopic(len(ids) - 2)); n != fleet.MaxRanks || r.feed.listener.streams != fleet.MaxRanks+1 {
		t.Errorf("after a worker left, its connection has %d streams, all connections have %d", n, r.feed.listener.streams)
	}
	if _, followed := r.stats(fmt.Sprintf("http://pod-%d:8000", len(ids)-2), 0); !followed {
		t.Error("after a worker left, its connection cannot bring the events of another worker")
	}
	hostile.listener.disconnect(hostile.peer, io.EOF)
	engine.listener.disconnect(engine.peer, io.EOF)
	if n := r.feed.listener.streams; n != 0 {
		t.Errorf("%d streams are counted without a connection", n)
	}
}

func TestTheStreamsOfAllConnectionsAreBounded(t *testing.T) {
	r := newRig(t, Config{Listen: anyPort, Stream: StreamConfig{MaxStreams: 2}})
	ids := r.putPods(3)
	engines := make([]*connection, len(ids))
	for i := range engines {
		engines[i] = r.connection()
		engines[i].send(podTopic(i))
	}
	if n := engines[2].send(podTopic(2)); n != 0 || !strings.Contains(r.log.String(), "streams of all connections") {
		t.Errorf("the third engine has %d streams, want 0; or the log does not say so", n)
	}
	r.fleet.Remove(ids[0])
	r.feed.reconcile(t.Context(), r.fleet.Snapshot())
	if n := engines[2].send(podTopic(2)); n != 1 {
		t.Errorf("after a worker left, the third engine has %d streams, want 1", n)
	}
	if n := engines[1].send(podTopic(1)); n != 1 {
		t.Errorf("the second engine has %d streams, want 1", n)
	}
}
