package indexer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// A service that is slow or refuses one worker registers the others, and counts as a service that answers.
func TestAWorkerThatCannotBeRegisteredCostsNoOther(t *testing.T) {
	var mu sync.Mutex
	registered := map[string]bool{}
	slow := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/register" {
			return // an empty list of workers
		}
		body := make([]byte, r.ContentLength)
		var reg registration
		if n, _ := r.Body.Read(body); reg.decode(body[:n]) != nil {
			t.Error("not a registration")
		}
		switch reg.worker {
		case "http://w0":
			<-r.Context().Done() // no answer at all
		case "http://w1":
			w.WriteHeader(http.StatusConflict)
		default:
			mu.Lock()
			defer mu.Unlock()
			registered[reg.worker] = true
		}
	}))
	slow.Config.Protocols = new(http.Protocols)
	slow.Config.Protocols.SetUnencryptedHTTP2(true)
	slow.Start()
	defer slow.Close()
	a := newAsker(t, slow.URL, nil)
	const many = 200
	for i := range many {
		a.put("http://w"+strconv.Itoa(i), facts("tcp://127.0.0.1:9"))
	}
	testenv.Until(t, "all others are registered, and the service counts as there", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(registered) == many-2 && a.client.known.Load() != nil
	})
}

// stuckStream is the stream of a reader that takes nothing.
type stuckStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *stuckStream) Context() context.Context { return s.ctx }
func (s *stuckStream) RecvMsg(any) error        { return nil }

func (s *stuckStream) SendMsg(any) error {
	<-s.ctx.Done()
	return s.ctx.Err()
}

// A reader over gRPC that takes nothing does not hold the place of another one for ever.
func TestAReaderOverGRPCThatTakesNothingLosesItsStream(t *testing.T) {
	w := serve(t, Config{}, nil)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context()) // gRPC cancels it when the method has returned
		defer cancel()
		r := &rpc{Service: w.service, ctx: t.Context()}
		began := time.Now()
		err := r.answer(&stuckStream{ctx: ctx}, func(send func(encoder) error) error { return send(&empty{}) })
		if took := time.Since(began); !errors.Is(err, errStuck) || took != lineTimeout {
			t.Errorf("%v after %v", err, took)
		}
		cancel()
		r.running.Wait()
		began = time.Now()
		err = r.answer(&stuckStream{ctx: ctx}, func(func(encoder) error) error {
			<-time.After(2 * lineTimeout) // there is nothing to send
			return errBusy
		})
		if !errors.Is(err, errBusy) || time.Since(began) != 2*lineTimeout {
			t.Errorf("%v after %v: to have nothing to send is no mistake of the reader", err, time.Since(began))
		}
	})
}

// The mark between model and group is no part of a name that a client gives, in whatever form the name comes.
func TestANameReachesNoOtherGroup(t *testing.T) {
	w := serve(t, Config{}, nil)
	for _, q := range []question{{model: pooled("m", "secret"), tokens: []block.Token{1}}, {model: "m", group: "a" + groupMark + "b", tokens: []block.Token{1}}} {
		if status, text := w.ask("POST", "/query", string(q.appendTo(nil)), "Content-Type", protobuf); status != http.StatusBadRequest {
			t.Errorf("%d %s", status, text)
		}
		if name := pooled(q.model, q.group); name != groupMark {
			t.Errorf("%q is a group's model", name)
		}
	}
	if _, err := w.router.Route(t.Context(), &warmpath.Request{Model: groupMark, Tokens: []block.Token{1}}); err == nil {
		t.Error("a model has the name of the mark")
	}
}

// pipes is a listener whose connections have no buffers. A test in a bubble of synctest connects with dial.
type pipes chan net.Conn

func (p pipes) dial() net.Conn {
	ours, theirs := net.Pipe()
	p <- theirs
	return ours
}

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A reader over HTTP that takes nothing of the only dump loses it to another reader.
func TestAReaderThatTakesNothingLosesTheDump(t *testing.T) {
	w := serve(t, Config{}, nil)
	w.store(w.worker("http://a", nil).Holders[0], prompt(1, 16*20000), kvindex.Stored{})
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{}, w.service.Parts) // its channels are in the bubble
		l := make(pipes)
		server := &http.Server{Handler: s.routes}
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(l) })
		ask := func() (conn net.Conn, status int) {
			conn = l.dial()
			_, _ = io.WriteString(conn, "GET /dump HTTP/1.1\r\nHost: index\r\nConnection: close\r\n\r\n")
			line, _ := bufio.NewReaderSize(conn, 16).ReadSlice('\n') // "HTTP/1.1 200 OK"
			_, _ = fmt.Sscanf(string(line), "HTTP/1.1 %d", &status)
			return conn, status
		}
		slow, status := ask()
		if status != http.StatusOK {
			t.Errorf("the first dump: %d", status)
		}
		<-time.After(lineTimeout / 2)
		early, status := ask()
		if status != http.StatusServiceUnavailable {
			t.Errorf("another dump meanwhile: %d", status)
		}
		<-time.After(lineTimeout)
		late, status := ask()
		if status != http.StatusOK {
			t.Errorf("another dump after the time limit: %d", status)
		}
		for _, c := range []net.Conn{slow, early, late} {
			_ = c.Close()
		}
		close(l)
		_ = server.Close()
		serving.Wait()
	})
}

// pipe is pipes for a server that closes its listener.
type pipe struct {
	pipes
	close func()
}

func (p pipe) Close() error {
	p.close()
	return nil
}

// A stream of changes may have nothing to send for longer than a request may take to send its body, or an answer to be
// read. When the service stops, the stream says so.
func TestAStreamOfChangesLastsUntilTheServiceStops(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			w := serve(t, Config{}, nil)
			h := w.worker("http://a", nil).Holders[0]
			synctest.Test(t, func(t *testing.T) {
				s := New(Config{}, w.service.Parts)
				l := pipe{pipes: make(pipes)}
				l.close = sync.OnceFunc(func() { close(l.pipes) })
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				ended := make(chan error, 1)
				go func() { ended <- s.serveHTTP(ctx, l) }() // ends with ctx
				transport := &http.Transport{Protocols: new(http.Protocols), DialContext: func(context.Context, string, string) (net.Conn, error) { return l.dial(), nil }}
				transport.Protocols.SetHTTP1(!http2)
				transport.Protocols.SetUnencryptedHTTP2(http2)
				defer transport.CloseIdleConnections()
				resp, err := (&http.Client{Transport: transport}).Get("http://index/changes")
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = resp.Body.Close() }()
				lines := bufio.NewReader(resp.Body)
				if l := read(t, lines); l.Kind != "begin" {
					t.Errorf("the stream begins with %+v", l)
				}
				<-time.After(time.Hour)
				w.store(h, prompt(1, 64), kvindex.Stored{})
				for read(t, lines).Kind != "added" {
				}
				<-time.After(time.Hour)
				stop()
				if text, err := io.ReadAll(lines); err != nil || string(text) != `{"error":"the index service stops"}`+"\n" {
					t.Errorf("the stream ends with %q, %v", text, err)
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
