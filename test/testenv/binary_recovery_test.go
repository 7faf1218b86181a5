package testenv_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// With streams in flight one of two mock engines is killed, or stopped. No stream ends, and all have the same text.
func TestStreamsSurviveAKilledAndAStoppedEngine(t *testing.T) {
	for _, c := range []struct {
		name   string
		signal syscall.Signal
	}{{"killed", syscall.SIGKILL}, {"stopped", syscall.SIGSTOP}} {
		t.Run(c.name, func(t *testing.T) {
			ill, one := mockProcess(t, "--speed", "1")
			_, two := mockProcess(t, "--speed", "1")
			gateway := testenv.Serve(t, "--policy", "round_robin", "--worker", one, "--worker", two)
			gateway.Ready(t)
			body := `{"model":"mock","stream":true,"temperature":0,"ignore_eos":true,"max_tokens":400,"messages":[{"role":"user","content":"hi"}]}`
			want := streamText(t, two, body, nil)
			if len(strings.Fields(want)) != 400 {
				t.Fatalf("the mock engine says %q", want)
			}
			begun := make(chan struct{}, 32)
			var streams sync.WaitGroup
			for range 32 { // half of them are at the first engine
				streams.Go(func() {
					if got := streamText(t, gateway.URL, body, begun); got != want {
						t.Errorf("got %d words of 400: %.100q", len(strings.Fields(got)), got)
					}
				})
			}
			for range 32 {
				<-begun
			}
			ill.Signal(c.signal)
			streams.Wait()
			var metrics string
			testenv.WaitFor(t, 5*time.Second, "the recoveries to be counted", func() error {
				resp, err := http.Get(gateway.Admin + "/metrics")
				if err != nil {
					return err
				}
				defer func() { _ = resp.Body.Close() }()
				text, err := io.ReadAll(resp.Body)
				if metrics = string(text); err == nil && !strings.Contains(metrics, `warmpath_stream_recoveries_total{outcome="recovered"`) {
					return fmt.Errorf("no stream was recovered")
				}
				return err
			})
			if strings.Contains(metrics, `warmpath_stream_recoveries_total{outcome="refused"`) {
				t.Error("a stream was not recovered")
			}
		})
	}
}

// streamText returns the text of a stream that ends with [DONE], and a note if it does not. begun receives a value when
// ten events have come.
func streamText(t *testing.T, base, body string, begun chan<- struct{}) string {
	resp, err := http.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	var raw strings.Builder
	for buf := make([]byte, 4096); ; {
		n, err := resp.Body.Read(buf)
		raw.Write(buf[:n])
		if begun != nil && (err != nil || strings.Count(raw.String(), "\n\n") >= 10) {
			begun <- struct{}{}
			begun = nil
		}
		if err != nil {
			break
		}
	}
	text := ""
	for event := range strings.SplitSeq(raw.String(), "\n\n") {
		if _, rest, is := strings.Cut(event, `"content":"`); is {
			text += rest[:strings.IndexByte(rest, '"')]
		}
	}
	if !strings.HasSuffix(raw.String(), "data: [DONE]\n\n") {
		text += " (no [DONE]) " + raw.String()[max(0, raw.Len()-200):]
	}
	return text
}
