package gateway_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"context"

	"github.com/warmpath/warmpath/test/testenv"
)

// held starts a worker. The worker begins each stream without delay, and ends all streams when release is closed. begun
// receives a value for each stream.
func held(t *testing.T) (url string, begun, release chan struct{}) {
	begun, release = make(chan struct{}, 16), make(chan struct{})
	url = worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, firstChunk)
		w.(http.Flusher).Flush()
		begun <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
			return
		}
		_, _ = io.WriteString(w, lastChunk+doneChunk)
	})
	return url, begun, release
}

func TestDrainLetsStreamsEnd(t *testing.T) {
	url, begun, release := held(t)
	f := serve(t, nil, url)
	answer := make(chan string, 1)
	go func() { // this goroutine ends with the stream; the test receives the result below
		_, text, err := f.try(context.Background(), chatStreamed)
		if err != nil {
			text = err.Error()
		}
		answer <- text
	}()
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- f.stop() }() // the test receives the result below
	testenv.Until(t, "new connections are refused", func() bool {
		resp, err := http.Get(f.url + "/health")
		if err == nil {
			_ = resp.Body.Close()
		}
		http.DefaultClient.CloseIdleConnections()
		return err != nil
	})
	select {
	case err := <-stopped:
		t.Fatalf("the gateway stopped under a stream: %v", err)
	default:
	}
	close(release)
	if text := <-answer; !strings.HasSuffix(text, doneChunk) {
		t.Errorf("the stream ended %q", text)
	}
	if err := <-stopped; err != nil {
		t.Errorf("drain: %v", err)
	}
	f.idle(t)
}

// The drain ends a stream early. A client that does not check how the connection ended must still see that the answer
// is not complete.
func TestAStreamThatDrainCutsEndsWithAnErrorEvent(t *testing.T) {
	url, begun, release := held(t)
	defer close(release)
	f := serve(t, func(s *settings) { s.gateway.DrainTimeout = time.Millisecond }, url)
	answer := make(chan string, 1)
	go func() { // this goroutine ends when the stream is cut; the test receives the result below
		_, text, err := f.try(context.Background(), chatStreamed)
		answer <- fmt.Sprint(text, err)
	}()
	<-begun
	testenv.Until(t, "the first event has passed", func() bool { return f.Fleet.Snapshot().Load(0).Waiting == 0 })
	if err := f.stop(); err == nil {
		t.Error("nothing was cut")
	}
	got := <-answer
	event, begins := strings.CutPrefix(got, firstChunk)
	if !begins || !strings.HasPrefix(event, `data: {"error":{`) || !strings.Contains(event, `"draining"`) || !strings.HasSuffix(event, "\n\n<nil>") ||
		strings.Contains(event, "[DONE]") {
		t.Errorf("the client got %q", got)
	}
}

func TestDrainCutsRequestsThatOutliveIt(t *testing.T) {
	url, begun, release := held(t)
	defer close(release)
	f := serve(t, func(s *settings) { s.gateway.DrainTimeout = 50 * time.Millisecond }, url)
	ended := make(chan error, 1)
	go func() { // this goroutine ends when the stream is cut; the test receives the result below
		_, text, err := f.try(context.Background(), chatStreamed)
		if err == nil && strings.Contains(text, "[DONE]") {
			err = errors.New("the stream looks whole")
		} else {
			err = nil
		}
		ended <- err
	}()
	<-begun
	if err := f.stop(); err == nil || !strings.Contains(err.Error(), "cut") {
		t.Errorf("drain says %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	f.idle(t)
}

func TestReadinessTurnsBeforeTheListenerCloses(t *testing.T) {
	f := serve(t, func(s *settings) { s.gateway.DrainDelay = 2 * time.Second }, worker(t, plain))
	stopped := make(chan error, 1)
	go func() { stopped <- f.stop() }() // the test receives the result below
	saw := false
	testenv.Until(t, "readiness says 503", func() bool {
		resp, err := f.client.Get(f.url + "/readiness")
		if err != nil {
			t.Fatalf("the listener closed first: %v", err)
		}
		_ = resp.Body.Close()
		saw = resp.StatusCode == 503
		return saw
	})
	if resp, text := f.post(t, chat); resp.StatusCode != 200 {
		t.Errorf("a request within the delay: %d %s", resp.StatusCode, text)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A client that closes its sending side counts as gone, but may still read. It must not get bytes that look like an
// answer.
func TestAClientThatEndsItsSideGetsNoEmptyAnswer(t *testing.T) {
	for name, busy := range map[string]bool{"at a worker": false, "in the queue": true} {
		g := newGate()
		f := queued(t, g, nil)
		if busy {
			f.ask(t, "first", "")
			testenv.Until(t, "the worker is busy", func() bool { return len(g.seen()) == 1 })
		}
		conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_, _ = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(chat), chat)
		_ = conn.(*net.TCPConn).CloseWrite()
		if answer, err := io.ReadAll(conn); len(answer) > 0 || err != nil {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
	}
}
