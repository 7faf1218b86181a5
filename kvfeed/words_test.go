package kvfeed

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

func TestAConfiguredBlockSizeThatIsNotUsedIsLogged(t *testing.T) {
	for _, test := range []struct {
		configured, announced int
		warning               string
	}{
		{64, 16, "events carry 16-token blocks, configured 64: using 16"},
		{64, 1, "events carry 1-token blocks, configured 64: using 16"},
		{16, 64, ""},
		{0, 16, ""},
	} {
		r := newRig(t, Config{BlockSize: test.configured})
		s := r.stream(facts(fleet.EngineVLLM, test.announced))
		for i := range uint64(3) {
			s.Message(i, wire(t, "vllm-0.32.0", batch(stored(int(i), 0, 128, test.announced))))
		}
		log := r.log.String()
		if strings.Count(log, "token blocks") != min(len(test.warning), 1) || !strings.Contains(log, test.warning) {
			t.Errorf("configured %d, announced %d: log, want %q:\n%s", test.configured, test.announced, test.warning, log)
		}
	}
}

// unconnected returns a stream whose connection has not come up yet.
func (r *rig) unconnected(source fleet.EventSource) *stream {
	r.t.Helper()
	r.fleet.SetHealth(r.fleet.Put(workerURL, facts(fleet.EngineVLLM, 16)), true, "")
	w := r.fleet.Snapshot().Workers()[0]
	s := r.feed.newStream(w, w.Holders[0], source)
	s.wire = func() StreamStats { return StreamStats{} }
	return s
}

func TestAnEndpointWithoutAnswerIsLogged(t *testing.T) {
	r := newRig(t, Config{})
	s := r.unconnected(fleet.EventSource{Endpoint: "tcp://127.0.0.1:5557"})
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connect: connection refused")}
	s.State(false, refused)
	r.trust(s.holder, fleet.TrustApproximate, "no events since "+s.started.UTC().Format(time.TimeOnly)+" UTC: tcp://127.0.0.1:5557 cannot be reached (connect: connection refused); learned from requests")
	s.look(s.started.Add(time.Second))
	if log := r.log.String(); log != "" {
		t.Errorf("a warning is logged before the time for a reconnect has passed:\n%s", log)
	}
	for i := range 100 {
		s.look(s.started.Add(6*time.Second + time.Duration(i)*time.Second))
	}
	log := r.log.String()
	want := "worker " + workerURL + " answers but its KV events at tcp://127.0.0.1:5557 cannot be reached (connect: connection refused)"
	if strings.Count(log, "cannot be reached") != 1 || !strings.Contains(log, want) || !strings.Contains(log, "WARN") {
		t.Errorf("log, want one line %q:\n%s", want, log)
	}
}

// An index service has asked no registered worker whether it answers, and it learns nothing from requests.
func TestAProcessWithoutRequestsSaysWhatItKnows(t *testing.T) {
	r := newRig(t, Config{Unrouted: true})
	s := r.unconnected(fleet.EventSource{Endpoint: "tcp://127.0.0.1:5557"})
	reason := func() string {
		_, why := r.fleet.Snapshot().Trust(s.holder)
		return why
	}
	s.look(s.started)
	if why := reason(); why != "connecting to tcp://127.0.0.1:5557" {
		t.Errorf("while it connects: %q", why)
	}
	s.State(false, errors.New("connection refused"))
	s.look(s.started.Add(6 * time.Second))
	if why := reason(); !strings.HasSuffix(why, "cannot be reached (connection refused)") {
		t.Errorf("without a connection: %q", why)
	}
	log := r.log.String()
	if !strings.Contains(log, "the KV events of worker "+workerURL+" at tcp://127.0.0.1:5557 cannot be reached (connection refused), so nothing is known of its cache") ||
		strings.Contains(log, "answers") || strings.Contains(log, "requests") || strings.Contains(log, "events=") {
		t.Errorf("log:\n%s", log)
	}
}

func TestABrokenConnectionIsLoggedBriefly(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16))))
	s.State(false, fmt.Errorf("connection to tcp://127.0.0.1:5557 ended: %w", io.EOF))
	r.trust(s.holder, fleet.TrustDegraded, "the event stream is disconnected: the worker closed it")
}

func TestWithoutReplayTheHistoryIsUnknown(t *testing.T) {
	r := newRig(t, Config{})
	s := r.unconnected(fleet.EventSource{Endpoint: "tcp://127.0.0.1:5557"})
	s.State(true, nil)
	r.trust(s.holder, fleet.TrustDegraded, "no replay endpoint")
}

func TestTheLogShowsTrustThatHasSettled(t *testing.T) {
	r := newRig(t, Config{})
	s := r.unconnected(fleet.EventSource{Endpoint: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5657"})
	s.State(true, nil) // connected, but the history is not read yet: the trust has not settled
	s.Complete()
	if log := r.log.String(); strings.Count(log, "trust changed") != 1 || !strings.Contains(log, "from=approximate to=exact") {
		t.Errorf("log, want one line from approximate to exact:\n%s", log)
	}
	s.Lost(5, 9)
	if log := r.log.String(); !strings.Contains(log, "WARN msg=\"trust changed\"") || !strings.Contains(log, "from=exact to=degraded") {
		t.Errorf("log, want a warning from exact to degraded:\n%s", log)
	}

	r = newRig(t, Config{})
	s = r.unconnected(fleet.EventSource{Endpoint: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5657"})
	s.State(true, nil)
	s.look(time.Now().Add(6 * time.Second))
	if log := r.log.String(); !strings.Contains(log, readingHistory) {
		t.Errorf("the log does not say that reading the history does not end:\n%s", log)
	}
}
