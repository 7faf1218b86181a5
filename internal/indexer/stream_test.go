package indexer

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// asks returns how many questions the client sent over its stream, -1 without a stream.
func (a *asker) asks() int {
	s := a.client.stream.Load()
	if s == nil {
		return -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.last)
}

// fleetOf makes the service and a router that asks it, with one worker that has 128 tokens of the prompt.
func fleetOf(t *testing.T, w *world, change func(*ClientConfig, *warmpath.Options), logs ...io.Writer) (*asker, *warmpath.Request) {
	t.Helper()
	p := prompt(1, 200)
	w.store(w.worker("http://a", nil).Holders[0], p[:128], kvindex.Stored{})
	a := newAsker(t, w.url, func(c *ClientConfig, o *warmpath.Options) {
		c.Register = false
		if change != nil {
			change(c, o)
		}
	}, logs...)
	h := a.put("http://a", fleet.Facts{Models: []fleet.Model{{ID: "m"}}, BlockSize: 16}).Holders[0]
	testenv.Until(t, "the trust is the service's", func() bool { return a.trusts(h, fleet.TrustExact) })
	return a, &warmpath.Request{Model: "m", Tokens: p}
}

// found fails the test unless the client finds the 128 tokens. On a busy machine a poll may be late. Then no question
// is asked until the next one, so found tries again.
func (a *asker) found(t *testing.T, req *warmpath.Request) {
	t.Helper()
	testenv.Until(t, "a question is asked while the service counts", func() bool {
		before := a.client.known.Load()
		d, err := a.match(t, req)
		if err == nil && d.MatchTokens == 128 {
			return true
		}
		if before == nil || a.client.known.Load() != before {
			return false
		}
		t.Errorf("%s: %v", d, err)
		return true
	})
}

// A service with gRPC is asked over one stream. When the stream ends, questions go over HTTP until there is a new one.
func TestARouterAsksOverAStream(t *testing.T) {
	w := serve(t, Config{Key: "secret-key"}, nil)
	a, req := fleetOf(t, w, func(c *ClientConfig, _ *warmpath.Options) { c.Key = "secret-key" })
	testenv.Until(t, "the stream is open", func() bool { return a.asks() > 0 })
	before := a.asks()
	a.found(t, req)
	if n := a.asks(); n != before+1 {
		t.Errorf("%d questions went over the stream", n-before)
	}
	w.service.grpcPort.Store(0) // there will be no other stream
	a.client.stream.Load().stop(nil)
	a.found(t, req)
	testenv.Until(t, "the stream has ended", func() bool { return a.asks() < 0 })
	a.found(t, req)
	w.service.grpcPort.Store(int32(port(t, w.rpc)))
	testenv.Until(t, "there is a stream again", func() bool { return a.asks() > 0 })
	a.found(t, req)
	w.stop()
	testenv.Until(t, "the service's end is noticed", func() bool { return a.client.known.Load() == nil && a.asks() < 0 })
}

// HTTP and gRPC have the same certificates, and the router the same settings for both.
func TestARouterAsksOverTLS(t *testing.T) {
	server := network.ListenerTLS{}
	server.CertFile, server.KeyFile = testenv.Certificate(t, "localhost")
	own := network.PeerTLS{CAFile: server.CertFile}
	own.CertFile, own.KeyFile = testenv.Certificate(t, "router")
	server.ClientCAFile = own.CertFile
	certificates, err := network.ReadCertificates(server)
	if err != nil {
		t.Fatal(err)
	}
	w := serve(t, Config{}, func(p *Parts) { p.Certificates = certificates })
	w.url = "https" + w.url[len("http"):]
	own.ServerName = "localhost"
	a, req := fleetOf(t, w, func(c *ClientConfig, _ *warmpath.Options) { c.TLS = own })
	testenv.Until(t, "the stream is open", func() bool { return a.asks() > 0 })
	a.found(t, req)
	a.client.stream.Load().stop(nil)
	a.found(t, req)

	for name, broken := range map[string]network.PeerTLS{"no certificate": {CAFile: own.CAFile, ServerName: "localhost"}, "another authority": {CAFile: own.CertFile, CertFile: own.CertFile, KeyFile: own.KeyFile, ServerName: "localhost"}} {
		b := newAsker(t, w.url, func(c *ClientConfig, _ *warmpath.Options) { c.TLS = broken })
		h := b.put("http://a", fleet.Facts{Models: []fleet.Model{{ID: "m"}}, BlockSize: 16}).Holders[0]
		testenv.Until(t, name+" is refused", func() bool { return b.trusts(h, fleet.TrustNone) })
	}
}

// What answers at the port for gRPC may be anything: questions then go over HTTP, and nothing waits longer than it may.
func TestAStreamThatIsNoneCostsNoAnswer(t *testing.T) {
	next := func(on grpc.ServerStream) (*question, error) {
		q := new(question)
		return q, on.RecvMsg(q)
	}
	silent := func(on grpc.ServerStream) error {
		for {
			if _, err := next(on); err != nil {
				return err
			}
		}
	}
	for name, c := range map[string]struct {
		answer func(grpc.ServerStream, *question) error
		lost   bool // answers do not come, until the stream is given up
	}{
		"silent": {func(on grpc.ServerStream, _ *question) error { return silent(on) }, true},
		"other ids": {func(on grpc.ServerStream, q *question) error {
			return on.SendMsg(&answer{id: q.id + 1000, blockSize: 16})
		}, true},
		"garbage": {func(on grpc.ServerStream, _ *question) error { return on.SendMsg(&rawMessage{0xff}) }, false},
		"too long": {func(on grpc.ServerStream, _ *question) error {
			return on.SendMsg(&answer{problem: string(make([]byte, maxAnswer))})
		}, false},
		"ends":            {func(grpc.ServerStream, *question) error { return errors.New("no more") }, false},
		"answers nothing": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t)
			server := grpc.NewServer(grpc.ForceServerCodecV2(codec{}))
			server.RegisterService(&grpc.ServiceDesc{ServiceName: serviceDesc.ServiceName, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
				StreamName: "Ask", ServerStreams: true, ClientStreams: true, Handler: func(_ any, on grpc.ServerStream) error {
					if c.answer == nil {
						return silent(on)
					}
					for first := true; ; first = false {
						q, err := next(on)
						if err == nil && first {
							err = on.SendMsg(&answer{id: q.id, code: 3})
						} else if err == nil {
							err = c.answer(on, q)
						}
						if err != nil {
							return err
						}
					}
				}}}}, struct{}{})
			done := make(chan error)
			go func() { done <- server.Serve(l) }()
			defer func() {
				server.Stop()
				<-done
			}()
			w := serve(t, Config{}, nil)
			testenv.Until(t, "the service serves", func() bool { return w.service.grpcPort.Load() > 0 })
			w.service.grpcPort.Store(int32(port(t, l.Addr().String())))
			a, req := fleetOf(t, w, nil)
			if c.answer == nil {
				testenv.Until(t, "the stream was tried", func() bool { return a.client.warned.Load() })
				a.found(t, req)
				return
			}
			testenv.Until(t, "the stream is open", func() bool { return a.asks() > 0 })
			w.service.grpcPort.Store(0)
			if c.lost {
				testenv.Until(t, "the stream is given up", func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
					defer cancel()
					_ = a.client.Match(ctx, &warmpath.Lookup{Model: "m", BlockSize: 16, Keys: []block.Key{1}})
					return a.asks() < 0
				})
				testenv.Until(t, "the service counts again", func() bool { return a.client.known.Load() != nil })
			}
			a.found(t, req)
			testenv.Until(t, "the stream has ended", func() bool { return a.asks() < 0 })
		})
	}
}

// A service that is far away answers late over each connection: its stream stays open, also while it is left alone.
func TestLateAnswersEndNoStream(t *testing.T) {
	w, log := serve(t, Config{}, nil), new(testenv.Buffer)
	a, req := fleetOf(t, w, nil, log)
	h := a.fleet.Snapshot().Workers()[0].Holders[0]
	testenv.Until(t, "the stream is open", func() bool { return a.asks() > 0 })
	s := a.client.stream.Load()
	for n := 0; !a.client.late.told.Load(); n++ { // an answer may be there before the time is looked at
		if n == 100*network.MostLate {
			t.Fatal("the service is not left alone")
		}
		ctx, cancel := context.WithDeadline(t.Context(), time.Now())
		_ = a.client.Match(ctx, &warmpath.Lookup{Model: "m", BlockSize: 16, Keys: []block.Key{1}})
		cancel()
	}
	testenv.Until(t, "the rest ends", func() bool { return a.trusts(h, fleet.TrustExact) })
	a.found(t, req)
	if a.client.stream.Load() != s && !strings.Contains(log.String(), "index service does not answer") { // a poll that was late ends it
		t.Errorf("the stream has ended:\n%s", log.String())
	}
}

// Where ports are mapped, or behind a load balancer, the port for gRPC can reach another service than index.url. Its
// index may be of other workers, so it is not asked.
func TestAStreamToAnotherServiceIsNotAsked(t *testing.T) {
	w, other, log := serve(t, Config{}, nil), serve(t, Config{}, nil), new(testenv.Buffer)
	testenv.Until(t, "the service serves", func() bool { return w.service.grpcPort.Load() > 0 })
	w.service.grpcPort.Store(int32(port(t, other.rpc)))
	a, req := fleetOf(t, w, nil, log)
	const warning = "reaches another index service than index.url, so questions go over HTTP"
	testenv.Until(t, "the log says so", func() bool { return strings.Contains(log.String(), warning) })
	a.found(t, req)
	if a.asks() >= 0 {
		t.Error("the other service is asked")
	}
	a.stop()
	a.client.noStream(1, errAstray)
	if text := log.String(); strings.Count(text, warning) != 1 || strings.Contains(text, "asking the index service over gRPC") || !strings.Contains(text, "map it to the same number") {
		t.Errorf("%s", text)
	}
}

// When index.url reaches another process than before, such as another one behind a load balancer, the stream to the
// former process ends, and there is soon one to the new process.
func TestAStreamEndsWhenTheServiceIsAnotherOne(t *testing.T) {
	w, log := serve(t, Config{}, nil), new(testenv.Buffer)
	a, req := fleetOf(t, w, nil, log)
	testenv.Until(t, "the stream is open", func() bool { return a.asks() > 0 })
	s := a.client.stream.Load()
	if s.process == 0 || s.process != w.service.process || !s.leads(0) || !new(stream).leads(1) {
		t.Errorf("the stream reaches %d, want %d; an older service has 0", s.process, w.service.process)
	}
	a.client.keepStream(t.Context(), port(t, w.rpc), s.process+1)
	testenv.Until(t, "the stream has ended", func() bool { return strings.Contains(log.String(), "reason="+strconv.Quote(errAstray.Error())) })
	a.found(t, req)
	testenv.Until(t, "there is a stream to the process of index.url", func() bool { return a.asks() > 0 })
	a.stop()
	if first, again := a.client.pauseAfter(errAstray), a.client.pauseAfter(io.EOF); first != astrayEvery || again != openEvery {
		t.Errorf("after a second stream that leads elsewhere the pause is %v, and after another end %v", first, again)
	}
}

// The log names the error of an answer, over HTTP as over gRPC, at most once a minute.
func TestTheLogNamesTheErrorOfAnAnswer(t *testing.T) {
	for _, over := range []string{"gRPC", "HTTP"} {
		w, log := serve(t, Config{}, nil), new(testenv.Buffer)
		testenv.Until(t, "the service serves", func() bool { return w.service.grpcPort.Load() > 0 })
		want := "answers NotFound: no worker serves"
		if over == "HTTP" {
			want = "answers /query_by_hash with 404: "
			w.service.grpcPort.Store(0)
		}
		a, _ := fleetOf(t, w, nil, log)
		if over == "gRPC" {
			testenv.Until(t, "the stream is open", func() bool { return a.asks() > 0 })
		}
		ask := func() {
			if err := a.client.Match(t.Context(), &warmpath.Lookup{Model: "other", BlockSize: 16, Keys: []block.Key{1}}); err == nil {
				t.Errorf("%s: no error", over)
			}
		}
		testenv.Until(t, "an answer has an error", func() bool { // a poll that is late on a busy machine ends questions for a moment
			ask()
			return strings.Contains(log.String(), want)
		})
		ask()
		if text := log.String(); strings.Count(text, "answers a question with an error") != 1 {
			t.Errorf("%s: want one line with %q:\n%s", over, want, text)
		}
	}
}

// A stream that takes no more questions refuses them at once.
func TestAFullStreamLetsQuestionsGoAnotherWay(t *testing.T) {
	s := &stream{questions: make(chan rawMessage, 1), ended: make(chan struct{}), stop: func(error) {}, waiting: map[uint64]*asked{}}
	s.questions <- nil
	if _, err := s.ask(t.Context(), new(question)); !errors.Is(err, errStream) || len(s.waiting) != 0 {
		t.Errorf("%v, %d wait", err, len(s.waiting))
	}
	<-s.questions
	for id := range maxWaiting {
		s.waiting[1<<32+uint64(id)] = nil
	}
	if _, err := s.ask(t.Context(), new(question)); !errors.Is(err, errStream) || len(s.questions) != 0 {
		t.Errorf("%v, %d are queued", err, len(s.questions))
	}
}

// Each question gets its own answer, however many are asked at the same time.
func TestQuestionsOverAStreamGetTheirOwnAnswers(t *testing.T) {
	w := serve(t, Config{}, nil)
	a, _ := fleetOf(t, w, nil)
	testenv.Until(t, "the stream is open", func() bool { return a.asks() > 0 })
	h := w.fleet.Snapshot().Workers()[0].Holders[0]
	const many = 40
	for n := range many {
		w.store(h, prompt(n+2, 16*(n+1)), kvindex.Stored{})
	}
	results := make(chan []int, 8)
	for range cap(results) {
		go func() {
			var got []int
			for n := range many {
				d, err := a.match(t, &warmpath.Request{Model: "m", Tokens: prompt(n+2, 1000)})
				if err != nil {
					t.Error(err)
				}
				got = append(got, d.MatchTokens/16)
			}
			results <- got
		}()
	}
	var want []int
	for n := range many {
		want = append(want, n+1)
	}
	for range cap(results) {
		if got := <-results; !slices.Equal(got, want) {
			t.Errorf("%v", got)
		}
	}
}

// port returns the port of an address.
func port(t *testing.T, address string) int {
	t.Helper()
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return at.Port
}
