package gateway_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// The gateway reports the length of a growing answer to the fleet. So the fleet does not take the request for a leak,
// and counts the answer's tokens as load.
func TestTheFleetGetsTheLengthOfAGrowingAnswer(t *testing.T) {
	next := make(chan struct{})
	w := worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			_, _ = io.WriteString(w, firstChunk+firstChunk)
			w.(http.Flusher).Flush()
			<-next
		}
		_, _ = io.WriteString(w, lastChunk+doneChunk)
	})
	f := serve(t, nil, w)
	answered := make(chan error, 1)
	go func() { // this goroutine ends with the answer
		_, _, err := f.try(t.Context(), `{"model":"m","stream":true,"messages":[]}`)
		answered <- err
	}()
	output := func() int64 { return f.fleet.Snapshot().LoadAt(fleet.Holder(0), time.Now().UnixNano()).OutputTokens }
	for want := int64(2); want <= 6; want += 2 {
		testenv.Until(t, "the fleet knows the tokens so far", func() bool { return output() == want })
		next <- struct{}{}
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	f.idle(t)
	if n := output(); n != 0 {
		t.Errorf("%d tokens of an answer that has ended", n)
	}
}

// A worker that sends only comments or empty events is no frozen worker: each byte is a sign of life.
func TestBytesWithoutTokensAreASignOfLife(t *testing.T) {
	for name, piece := range map[string]string{
		"a comment": ": ping\n\n", "an empty event": "\n\n", "an event without a choice": `data: {"choices":[]}` + "\n\n",
		"an empty delta": `data: {"choices":[{"index":0,"delta":{},"finish_reason":null}]}` + "\n\n",
	} {
		for _, begin := range []string{"", firstChunk} {
			next := make(chan struct{})
			w := worker(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, begin)
				w.(http.Flusher).Flush()
				for range next {
					_, _ = io.WriteString(w, piece)
					w.(http.Flusher).Flush()
				}
				_, _ = io.WriteString(w, firstChunk+lastChunk+doneChunk)
			})
			f := serve(t, nil, w)
			answered := make(chan error, 1)
			go func() { // this goroutine ends with the answer
				_, _, err := f.try(t.Context(), `{"model":"m","stream":true,"messages":[]}`)
				answered <- err
			}()
			heard := func() int64 { return f.fleet.Snapshot().Silence(fleet.Holder(0)) }
			next <- struct{}{}
			testenv.Until(t, "the request is under way", func() bool { return heard() > 0 })
			for range 3 {
				before := time.Now().UnixNano()
				next <- struct{}{}
				testenv.Until(t, name+" is a sign of life", func() bool { return heard() > before })
			}
			close(next)
			if err := <-answered; err != nil {
				t.Fatal(err)
			}
			f.idle(t)
		}
	}
}

// The length of an answer in one piece is known only at its end. From this length the fleet learns the time of a pass.
// A request for several answers (n) does not show this time, because its answers grow in the same passes.
func TestAnswersInOnePieceTeachTheFleet(t *testing.T) {
	for body, teaches := range map[string]bool{
		`{"model":"m","messages":[{"role":"user","content":"hi"}]}`:       true,
		`{"model":"m","n":4,"messages":[{"role":"user","content":"hi"}]}`: false,
	} {
		f := serve(t, func(s *settings) { s.local = fortyZeros{} }, worker(t, plain))
		if resp, text := f.post(t, body); resp.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		f.last(t, 1)
		f.idle(t)
		if n := f.fleet.Snapshot().Timing(0).Samples; teaches != (n > 0) {
			t.Errorf("%s: %d measurements", body, n)
		}
	}
}
