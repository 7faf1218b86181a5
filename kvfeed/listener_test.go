package kvfeed

import (
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/internal/mockengine"
)

func listenSilently(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

func TestTopicsOfEngines(t *testing.T) {
	for topic, want := range map[string]Origin{
		"kv@10.0.0.7:8000@meta/llama": {Address: "10.0.0.7:8000", Model: "meta/llama"},
		"kv@[fd00::1]:8000@m@v1":      {Address: "[fd00::1]:8000", Model: "m@v1"},
		"kv@pod-1@m":                  {Address: "pod-1", Model: "m"},
	} {
		want.Topic = topic
		if got, err := ParseTopic(topic); err != nil || got != want {
			t.Errorf("ParseTopic(%q) = %+v, %v", topic, got, err)
		}
	}
	for _, topic := range []string{"", "kv@", "kv@a", "kv@@m", "kv@a@", "kw@a@m", "kv-events"} {
		if _, err := ParseTopic(topic); err == nil {
			t.Errorf("ParseTopic(%q) accepted", topic)
		}
	}
}

// accepted collects the streams that a Listener opens.
type accepted struct {
	t       *testing.T
	replay  string
	mu      sync.Mutex
	diaries map[Origin]*diary
}

func (g *accepted) accept(o Origin) (Handler, string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.Model == "unwanted" {
		return nil, ""
	}
	d := newDiary(g.t)
	g.diaries[o] = d
	return d, g.replay
}

// find waits for the n-th stream with that address and model.
func (g *accepted) find(address, model string, n int) []*diary {
	g.t.Helper()
	var found []*diary
	eventually(g.t, fmt.Sprintf("%d streams of %s %s", n, address, model), func() bool {
		found = nil
		g.mu.Lock()
		defer g.mu.Unlock()
		for o, d := range g.diaries {
			if o.Address == address && o.Model == model && o.Peer != "" {
				found = append(found, d)
			}
		}
		return len(found) == n
	})
	return found
}

func startListener(t *testing.T, replay string) (*Listener, *accepted, func()) {
	t.Helper()
	g := &accepted{t: t, replay: replay, diaries: make(map[Origin]*diary)}
	l := NewListener("tcp://127.0.0.1:0", quickStream, g.accept)
	if err := l.Listen(); err != nil {
		t.Fatal(err)
	}
	return l, g, runUntilStopped(t, l.Run)
}

func TestManyEnginesConnectToOneListener(t *testing.T) {
	l, g, _ := startListener(t, "")
	var engines []*engine
	for i := range 5 {
		topic := fmt.Sprintf("kv@10.0.0.%d:8000@m", i/2) // two ranks share an address
		e := startEngine(t, fmt.Sprint(i), mockengine.PublisherConfig{Endpoint: l.Endpoint(), Connect: true, Topic: topic})
		e.untilHeard(t)
		e.publish(100)
		engines = append(engines, e)
	}
	for i, ranks := range []int{2, 2, 1} {
		for _, d := range g.find(fmt.Sprintf("10.0.0.%d:8000", i), "m", ranks) {
			d.await("100 messages", func() bool { return d.messages >= 100 })
		}
	}
	if st := l.Stats(); st.Peers != 5 || st.Streams != 5 || st.Refused != 0 {
		t.Errorf("stats %+v", st)
	}
	// The last one goes and comes back as a new stream.
	last := engines[4]
	d := g.find("10.0.0.2:8000", "m", 1)[0]
	n := last.Stats().Published
	d.awaitSeen(n)
	last.stop()
	d.await("the end", func() bool { return !d.connected })
	d.mu.Lock()
	if end := d.lost[len(d.lost)-1]; end != [2]uint64{n, n} {
		t.Errorf("lost %v", d.lost)
	}
	d.mu.Unlock()
	e := startEngine(t, "new", mockengine.PublisherConfig{Endpoint: l.Endpoint(), Connect: true, Topic: "kv@10.0.0.2:8000@m"})
	e.untilHeard(t)
	g.find("10.0.0.2:8000", "m", 2)
}

func TestAListenersStreamsAreReplayed(t *testing.T) {
	e := mockengine.NewPublisher(mockengine.PublisherConfig{Endpoint: nobody(t), Replay: "tcp://127.0.0.1:0", Connect: true, Topic: "kv@a:1@m"})
	if err := e.Listen(); err != nil {
		t.Fatal(err)
	}
	g := &accepted{t: t, replay: e.ReplayEndpoint(), diaries: make(map[Origin]*diary)}
	l := NewListener(e.Endpoint(), quickStream, g.accept)
	stop := runUntilStopped(t, l.Run)
	p := &engine{e, mockengine.PublisherConfig{}, "a", runUntilStopped(t, e.Run)}
	p.publish(100)
	p.untilHeard(t)
	d := g.find("a:1", "m", 1)[0]
	d.awaitComplete(1)
	p.publish(10)
	d.awaitSeen(p.Stats().Published)
	d.expect(0)
	d.expectPayloads("a", 0, p.Stats().Published)
	stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.connected || len(d.lost) != 0 {
		t.Error("the end of the listener is taken for the end of the stream")
	}
}

func TestAListenerRefusesStreams(t *testing.T) {
	l, g, _ := startListener(t, "")
	for _, topic := range []string{"kv@a:1@unwanted", "kv@nonsense"} {
		e := startEngine(t, "a", mockengine.PublisherConfig{Endpoint: l.Endpoint(), Connect: true, Topic: topic})
		e.untilHeard(t)
		e.publish(1)
	}
	eventually(t, "four messages are refused", func() bool { return l.Stats().Refused >= 4 })
	if st := l.Stats(); st.Refused < 4 || st.Streams != 0 || len(g.diaries) != 0 {
		t.Errorf("stats %+v, %d streams", st, len(g.diaries))
	}
	if err := NewListener("tcp://nowhere", StreamConfig{}, g.accept).Run(t.Context()); err == nil {
		t.Error("a bad endpoint is accepted")
	}
}
