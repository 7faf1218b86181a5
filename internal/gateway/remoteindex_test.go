package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/kvindex"
)

// elsewhere answers as an index in another process: the holder has the whole prompt.
type elsewhere struct {
	holder fleet.Holder
	fail   func(ctx context.Context) error
}

func (e *elsewhere) Match(ctx context.Context, q *warmpath.Lookup) error {
	q.Matches = append(q.Matches, kvindex.Match{Holder: e.holder, Blocks: uint32(len(q.Keys)), Full: uint32(len(q.Keys))})
	return e.fail(ctx)
}

// If the index does not answer, the request is served all the same: it is decided without matches.
func TestAnIndexInAnotherProcessIsAskedBeforeTheDecision(t *testing.T) {
	for name, c := range map[string]struct {
		matched bool
		fail    func(ctx context.Context) error
	}{
		"it answers": {true, func(context.Context) error { return nil }},
		"it fails":   {false, func(context.Context) error { return errors.New("down") }},
		"it hangs": {false, func(ctx context.Context) error {
			<-ctx.Done()
			return fmt.Errorf("ask: %w", ctx.Err())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			answer := func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/chat/completions/render" {
					_, _ = io.WriteString(w, `{"token_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]}`)
					return
				}
				plain(w, r)
			}
			workers := []string{worker(t, answer), worker(t, answer), worker(t, answer)}
			f := serve(t, func(s *settings) {
				s.tokens.Budget = 5 * time.Second
				s.parts = func(p *gateway.Parts) {
					router, err := warmpath.New(warmpath.Options{Fleet: p.Fleet, RemoteIndex: true, SpeculativeTTL: -1, ApproximateTTL: -1})
					if err != nil {
						t.Fatal(err)
					}
					p.Router, p.Index, p.IndexTimeout = router, &elsewhere{2, c.fail}, 20*time.Millisecond
				}
			}, workers...)
			for h := range fleet.Holder(3) {
				f.fleet.SetTrust(h, fleet.TrustExact, "test")
			}
			for i := range 3 {
				resp, text := f.post(t, chat)
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("%d %s", resp.StatusCode, text)
				}
				rec := f.last(t, i+1)
				if c.matched != (rec.MatchTokens == 16) || c.matched && rec.Worker != workers[2] {
					t.Errorf("%d tokens matched at %s", rec.MatchTokens, rec.Worker)
				}
			}
		})
	}
}

// Engines that hash with a look-ahead need a second question. It is not asked if the first one took all the time: an
// index that is late once would count as late twice.
func TestNoQuestionIsAskedWhenTheTimeIsOver(t *testing.T) {
	answer := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/chat/completions/render" {
			_, _ = io.WriteString(w, `{"token_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]}`)
			return
		}
		plain(w, r)
	}
	for late, want := range map[bool]int32{false: 2, true: 1} {
		var asked atomic.Int32
		f := serve(t, func(s *settings) {
			s.tokens.Budget = 5 * time.Second
			s.parts = func(p *gateway.Parts) {
				router, err := warmpath.New(warmpath.Options{Fleet: p.Fleet, RemoteIndex: true})
				if err != nil {
					t.Fatal(err)
				}
				p.Router, p.IndexTimeout = router, time.Minute
				if late {
					p.IndexTimeout = 20 * time.Millisecond
				}
				p.Index = &elsewhere{0, func(ctx context.Context) error {
					asked.Add(1)
					if late {
						<-ctx.Done()
					}
					return ctx.Err()
				}}
			}
		}, worker(t, answer))
		if !f.Router.SetAhead(0, 1) {
			t.Fatal("no look-ahead")
		}
		if resp, text := f.post(t, chat); resp.StatusCode != http.StatusOK || asked.Load() != want {
			t.Errorf("late %t: %d questions, want %d; %d %s", late, asked.Load(), want, resp.StatusCode, text)
		}
	}
}

// Without a limit a slow index would hold up requests, and with an impossible one no answer would count.
func TestARemoteIndexNeedsALimit(t *testing.T) {
	defer func() {
		if r := recover(); !strings.Contains(fmt.Sprint(r), "limit for its answers") {
			t.Errorf("a gateway without the limit: %v", r)
		}
	}()
	gateway.New(gateway.Config{}, gateway.Parts{Index: &elsewhere{}})
}
