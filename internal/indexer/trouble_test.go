package indexer

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// The log says what is wrong with the index service and what to do next. It says nothing of workers, and the reason of
// the trust is not that the service is silent when it answered.
func TestTheLogSaysWhatIsWrongWithTheIndexService(t *testing.T) {
	dead := listen(t)
	_ = dead.Close()
	speaks := func(http2 bool, answer http.HandlerFunc) string {
		s := httptest.NewUnstartedServer(answer)
		if http2 {
			s.Config.Protocols = new(http.Protocols)
			s.Config.Protocols.SetUnencryptedHTTP2(true)
		}
		s.Start()
		t.Cleanup(s.Close)
		return s.URL
	}
	secured := serve(t, Config{Key: "secret-key"}, nil)
	other := speaks(false, http.NotFound)
	tls := httptest.NewUnstartedServer(http.NotFoundHandler())
	tls.EnableHTTP2 = true
	tls.Config.ErrorLog = log.New(io.Discard, "", 0)
	tls.StartTLS()
	t.Cleanup(tls.Close)
	redis := listen(t)
	t.Cleanup(func() { _ = redis.Close() })
	go func() { // ends when the listener is closed
		for {
			conn, err := redis.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("-NOAUTH Authentication required.\r\n"))
			_ = conn.(*net.TCPConn).CloseWrite()
		}
	}()
	for name, c := range map[string]struct{ url, key, what, next string }{
		"nothing listens":    {"http://" + dead.Addr().String(), "", noAnswer, "nothing listens at " + dead.Addr().String()},
		"a wrong name":       {"http://no-such-host.invalid:8090", "", noAnswer, "correct index.url"},
		"no key":             {secured.url, "", noKey, "the router has none: set WARMPATH_INDEX_KEY"},
		"a wrong key":        {secured.url, "wrong-key", noKey, "give the router the service's key"},
		"another server":     {other, "", noService, "index.url must be"},
		"another path":       {speaks(true, http.NotFound), "", noService, "index.url must be"},
		"a page":             {speaks(true, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }), "", noService, "index.url must be"},
		"a failing server":   {speaks(true, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }), "", failing, "tries again"},
		"https for http":     {strings.Replace(other, "http:", "https:", 1), "", noTLS, "write http://"},
		"a certificate":      {tls.URL, "", noTLS, "index.tls.ca_file"},
		"Redis with a login": {"http://" + redis.Addr().String(), "", noService, "index.url must be"},
	} {
		t.Run(name, func(t *testing.T) {
			logged := new(testenv.Buffer)
			a := newAsker(t, c.url, func(o *ClientConfig, _ *warmpath.Options) { o.Key = c.key }, logged)
			h := a.put("http://engine", facts("tcp://127.0.0.1:9")).Holders[0]
			testenv.Until(t, "the trouble is noticed", func() bool {
				_, why := a.fleet.Snapshot().Trust(h)
				return a.trusts(h, fleet.TrustNone) && why == c.what
			})
			a.stop()
			if text := logged.String(); !strings.Contains(text, c.what) || !strings.Contains(text, c.next) || strings.Contains(text, "the worker") {
				t.Errorf("want %q and %q:\n%s", c.what, c.next, text)
			}
		})
	}
}

// A service that is killed while it answers is away: index.url is right.
func TestAServiceThatIsKilledWhileItAnswersIsAway(t *testing.T) {
	f, log := newFreezer(t), new(testenv.Buffer)
	a := newAsker(t, f.URL, nil, log)
	a.stop() // only the test polls
	a.client.poll(t.Context())
	f.forget()
	f.lists.Store(true)
	polled := make(chan *listing)
	go func() { polled <- a.client.poll(t.Context()) }()
	testenv.Until(t, "the service is asked", func() bool { return f.called("/workers") })
	f.CloseClientConnections()
	if list := <-polled; list != nil {
		t.Error("there is a list")
	}
	if text := log.String(); !strings.Contains(text, noAnswer) || !strings.Contains(text, "look whether warmpath index runs") || strings.Contains(text, noService) {
		t.Errorf("%s", text)
	}
	for name, c := range map[string]struct {
		err   error
		known bool
		want  string
	}{
		"killed":              {io.ErrUnexpectedEOF, true, noAnswer},
		"never an answer":     {io.ErrUnexpectedEOF, false, noService},
		"a lost connection":   {errors.New("http2: client connection lost"), true, noAnswer},
		"another server":      {errors.New(`http2: failed reading the frame payload: note that the frame header looked like an HTTP/1.1 header`), true, noService},
		"an answer of others": {errWire, true, noService},
	} {
		if is := troubleOf(c.err, "h", false, c.known); is.what != c.want {
			t.Errorf("%s: %q, want %q", name, is.what, c.want)
		}
	}
}
