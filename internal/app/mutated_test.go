package app_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/test/testenv"
)

// recordedBatches returns the decoded messages of real engines' streams.
func recordedBatches(t *testing.T) []kvevent.Batch {
	t.Helper()
	var all []kvevent.Batch
	var d kvevent.Decoder
	for _, file := range testenv.Recordings(t) {
		for line := range bytes.Lines(testenv.Gunzip(t, file)) {
			var m struct {
				Topic   string   `json:"topic"`
				Payload string   `json:"payload_hex"`
				Frames  []string `json:"frames_hex"`
			}
			if err := json.Unmarshal(line, &m); err != nil {
				t.Fatal(err)
			}
			if m.Payload == "" && len(m.Frames) > 0 {
				m.Payload = m.Frames[len(m.Frames)-1]
			}
			payload, err := hex.DecodeString(m.Payload)
			if err != nil {
				t.Fatal(err)
			}
			var b kvevent.Batch // new for each message, because the decoder reuses its buffers
			if m.Topic == "kv-events" && d.Decode(payload, &b) == nil && len(b.Events) > 0 {
				all = append(all, b)
			}
		}
	}
	return all
}

// mutator changes recorded messages into messages that no correct engine sends.
type mutator struct {
	random  *rand.Rand
	batches []kvevent.Batch
	wire    kvevent.Wire
	kept    [][]byte // messages that are sent again later
	made    map[string]int
}

// next returns the next message and counts its mutations.
func (m *mutator) next() []byte {
	b := &m.batches[m.random.IntN(len(m.batches))]
	events := slices.Clone(b.Events)
	for i := range events {
		events[i].Hashes = slices.Clone(events[i].Hashes)
	}
	ids := m.random.Uint64()
	rename := func() {
		for i := range events {
			for j := range events[i].Hashes {
				events[i].Hashes[j] ^= ids
			}
			events[i].Parent ^= ids
		}
	}
	e := &events[m.random.IntN(len(events))]
	what := []string{"as it was", "other ids", "cycle", "own ancestor", "unknown parent", "giant block", "giant event", "repeated",
		"reordered", "truncated", "tokens cut", "other tier", "removed"}[m.random.IntN(13)]
	m.made[what]++
	switch what {
	case "other ids":
		rename()
	case "cycle": // two events: each has the other event's block as its parent
		rename()
		if n := len(e.Hashes); n > 0 {
			back := *e
			back.Hashes = []uint64{e.Hashes[n-1] + 1}
			back.Parent, back.HasParent = e.Hashes[n-1], true
			back.Tokens = e.Tokens[:min(len(e.Tokens), e.BlockSize)]
			e.Parent, e.HasParent = back.Hashes[0], true
			events = append(events, back)
		}
	case "own ancestor":
		if n := len(e.Hashes); n > 0 {
			e.Parent, e.HasParent = e.Hashes[n-1], true
		}
	case "unknown parent":
		rename()
		e.Parent, e.HasParent = m.random.Uint64(), true
	case "giant block":
		e.BlockSize = []int{1 << 16, 1 << 17, 1 << 20}[m.random.IntN(3)]
	case "giant event": // no tokens, and more blocks than a small index has room for
		rename()
		e.Kind, e.BlockSize, e.Tokens = kvevent.Stored, []int{16, 1 << 16, 1 << 20}[m.random.IntN(3)], nil
		for range 2000 {
			e.Hashes = append(e.Hashes, m.random.Uint64())
		}
	case "tokens cut":
		e.Tokens = e.Tokens[:len(e.Tokens)/2]
	case "other tier":
		e.Medium, e.Group = []string{"GPU", "CPU", "DISK"}[m.random.IntN(3)], m.random.IntN(5)-1
	case "removed":
		e.Kind = kvevent.Removed
	}
	payload := m.wire.Append(nil, &kvevent.Batch{Time: b.Time, Events: events})
	switch what {
	case "repeated":
		m.kept = append(m.kept, payload, payload)
	case "reordered":
		m.kept = append(m.kept, payload)
	case "truncated":
		if m.random.IntN(20) == 0 { // this is rare, because it makes the router forget the whole holder
			return payload[:m.random.IntN(len(payload))]
		}
	}
	if len(m.kept) > 50 {
		at := m.random.IntN(len(m.kept))
		payload = m.kept[at]
		m.kept = slices.Delete(m.kept, at, at+1)
	}
	return payload
}

// promise returns how long a completion and /admin/workers may take. The time is a second, or on a slow machine 20
// times the duration without load. Under the race detector it is at least 10 s.
func promise(calm time.Duration) time.Duration {
	limit := max(time.Second, 20*calm)
	if testenv.Race() {
		limit = max(limit, 10*time.Second)
	}
	return limit
}

func TestMutatedStreamsOfRealEnginesNeverStopARouterWithASmallIndex(t *testing.T) {
	batches := recordedBatches(t)
	wire, err := kvevent.ParseWire("vllm-0.32.0")
	if err != nil {
		t.Fatal(err)
	}
	rounds, budgets := 10, []int64{1, 2, 4, 8, 16}
	if testing.Short() {
		rounds, budgets = 2, []int64{1, 8}
	}
	for _, mib := range budgets {
		t.Run(fmt.Sprintf("%d MiB", mib), func(t *testing.T) {
			honest, liar := engine(t, nil), engine(t, nil)
			stream := mockengine.NewPublisher(mockengine.PublisherConfig{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0"})
			if err := stream.Listen(); err != nil {
				t.Fatal(err)
			}
			running(t, stream.Run)
			cfg := settings(honest, liar)
			cfg.Index.Bytes = mib << 20
			cfg.Workers[1].Events, cfg.Workers[1].Replay = stream.Endpoint(), stream.ReplayEndpoint()
			r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
			r.exact(2)
			backend := "http://" + r.AdminAddr().String()
			asked := 0
			both := func() (took time.Duration) {
				asked++
				began := time.Now()
				if resp, body := r.chat(strings.Repeat(fmt.Sprintf("question %d ", asked), 50)); resp.StatusCode != http.StatusOK {
					t.Fatalf("completion: %d %s", resp.StatusCode, body)
				}
				took = time.Since(began)
				began = time.Now()
				status, body := r.look(backend + "/admin/workers")
				took = max(took, time.Since(began))
				var shown admin.Workers
				if err := json.Unmarshal([]byte(body), &shown); err != nil || status != http.StatusOK || shown.Stalled != "" {
					t.Fatalf("workers: %d %s: %v", status, body, err)
				}
				for _, x := range shown.Index {
					if x.Bytes > mib<<20 {
						t.Errorf("the index has %d bytes of %d", x.Bytes, mib<<20)
					}
				}
				return took
			}
			calm := max(both(), both(), both())
			m := &mutator{random: rand.New(rand.NewPCG(uint64(mib), 11)), batches: batches, wire: wire, made: map[string]int{}}
			worst, sent, late := time.Duration(0), uint64(0), 0
			for range rounds {
				for range 1000 {
					sent = stream.Publish(m.next()) + 1
				}
				took := both() // how long answers take while the messages are applied
				// Under load 1000 messages may take minutes. So a minute without a further message is too long, not one for all.
				for last, applied := fmt.Sprint(sent-1), ""; applied != last; {
					r.wait("a further message is applied", func() bool {
						_, body := r.look(backend + "/metrics")
						_, body, found := strings.Cut(body, fmt.Sprintf("warmpath_events_last_sequence{rank=\"0\",worker=%q} ", liar.URL()))
						now, _, _ := strings.Cut(body, "\n")
						if !found || now == applied {
							return false
						}
						applied = now
						return true
					})
				}
				took = max(took, both())
				worst = max(worst, took)
				if limit := promise(calm); took > limit {
					// A busy machine may delay one round. If the router itself is slow, several rounds are late.
					if late++; late > 1 || took > 5*limit {
						t.Errorf("after %d messages an answer took %v, limit %v; that is number %d", sent, took, limit, late)
					}
				}
			}
			if status, body := r.look(r.url + "/readiness"); status != http.StatusOK {
				t.Errorf("readiness: %d %s", status, body)
			}
			t.Logf("%d messages, worst answer %v, calm %v, %v", sent, worst.Round(time.Millisecond), calm.Round(time.Millisecond), m.made)
		})
	}
}
