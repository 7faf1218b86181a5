package proxy

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/test/testenv"
)

// via is the transport to the workers of a test: plain TCP, unless TestEveryTransportBehavesTheSame sets another one.
var via = &transport{name: "http"}

// transport is a way to reach a worker.
type transport struct {
	name              string
	protocol          network.Protocol
	certFile, keyFile string // for https
	peers             network.Peers
	all               []*network.Peer
}

// listen opens a listener for a worker, and returns the worker's URL.
func (v *transport) listen(t testing.TB) (l net.Listener, url string) {
	t.Helper()
	var err error
	switch v.name {
	case "unix":
		socket := filepath.Join(t.TempDir(), "w.sock")
		l, err = net.Listen("unix", socket)
		url = "unix://" + socket
	case "https":
		var pair tls.Certificate
		if pair, err = tls.LoadX509KeyPair(v.certFile, v.keyFile); err == nil {
			config := &tls.Config{Certificates: []tls.Certificate{pair}}
			if v.protocol == network.ProtocolHTTP2 {
				config.NextProtos = []string{"h2"}
			}
			l, err = tls.Listen("tcp", "127.0.0.1:0", config)
		}
	default:
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		t.Fatal(err)
	}
	if url == "" {
		url = v.name + "://" + l.Addr().String()
	}
	v.know(t, url)
	return l, url
}

// know puts the worker at url into the table of peers.
func (v *transport) know(t testing.TB, url string) {
	t.Helper()
	p, err := network.ParsePeer(url, network.PeerConfig{TLS: network.PeerTLS{CAFile: v.certFile}, Protocol: v.protocol})
	if err != nil {
		t.Fatal(err)
	}
	v.all = append(v.all, p)
	v.peers.Replace(v.all)
}

// conformance has the tests that every transport must pass.
var conformance = map[string]func(*testing.T){
	"TestAnswerPassesUnchangedHoweverItIsSplit":          TestAnswerPassesUnchangedHoweverItIsSplit,
	"TestACutStreamNeverLooksComplete":                   TestACutStreamNeverLooksComplete,
	"TestACutBodyIsVisiblyCut":                           TestACutBodyIsVisiblyCut,
	"TestAnAttemptIsRetryableUntilAByteReachesTheClient": TestAnAttemptIsRetryableUntilAByteReachesTheClient,
	"TestTheEnginesRefusalsPassByteForByte":              TestTheEnginesRefusalsPassByteForByte,
	"TestAUselessAnswerIsHeldBack":                       TestAUselessAnswerIsHeldBack,
	"TestStaleConnectionsLoseNoRequest":                  TestStaleConnectionsLoseNoRequest,
	"TestAFreshConnectionIsNotTriedTwice":                TestAFreshConnectionIsNotTriedTwice,
	"TestAClientThatLeavesCancelsAtOnce":                 TestAClientThatLeavesCancelsAtOnce,
	"TestAClientThatLeavesBeforeTheHeaderCancelsToo":     TestAClientThatLeavesBeforeTheHeaderCancelsToo,
	"TestSilentWorkersTimeOut":                           TestSilentWorkersTimeOut,
	"TestAmbiguousAnswersAreRefused":                     TestAmbiguousAnswersAreRefused,
	"TestBadChunksAreRefused":                            TestBadChunksAreRefused,
	"TestFieldsOfTheConnectionStayBehind":                TestFieldsOfTheConnectionStayBehind,
	"TestAStreamThatFallsSilentBehindDoneIsWhole":        TestAStreamThatFallsSilentBehindDoneIsWhole,
	"TestAnEndlessAnswerIsJudgedByItsBeginning":          TestAnEndlessAnswerIsJudgedByItsBeginning,
	"TestAClientThatLeavesAtDoneWasServed":               TestAClientThatLeavesAtDoneWasServed,
	"TestAnUnrequestedStreamIsHeldBack":                  TestAnUnrequestedStreamIsHeldBack,
	"TestCommentsBeforeAStreamPass":                      TestCommentsBeforeAStreamPass,
	"TestAnswersWithoutBody":                             TestAnswersWithoutBody,
	"TestBytesBehindAnAnswerEndTheConnection":            TestBytesBehindAnAnswerEndTheConnection,
	"TestUnrequestedBytesAnswerNoRequest":                TestUnrequestedBytesAnswerNoRequest,
}

// framed has the tests of conformance that are about the framing of HTTP/1.1, or about connections for one request at a
// time. HTTP/2 has neither; http2_test.go has its own tests of GOAWAY and of streams that are refused.
var framed = map[string]bool{
	"TestAmbiguousAnswersAreRefused": true, "TestBadChunksAreRefused": true, "TestBytesBehindAnAnswerEndTheConnection": true,
	"TestUnrequestedBytesAnswerNoRequest": true, "TestAnswersWithoutBody": true, "TestStaleConnectionsLoseNoRequest": true,
}

func TestEveryTransportBehavesTheSame(t *testing.T) {
	plain := via
	defer func() { via = plain }()
	for _, v := range []*transport{{name: "https"}, {name: "unix"}, {name: "http", protocol: network.ProtocolHTTP2}, {name: "https", protocol: network.ProtocolHTTP2}, {name: "unix", protocol: network.ProtocolHTTP2}} {
		via = v
		if v.name == "https" {
			via.certFile, via.keyFile = testenv.Certificate(t)
		}
		for test, run := range conformance {
			if v.protocol == "" || !framed[test] {
				t.Run(v.name+string(v.protocol)+"/"+test, run)
			}
		}
	}
}

func TestAnUntrustedCertificateIsRefusedWithAHint(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	res := newClient(t, nil).Forward(context.Background(), attempt(s.URL, httptest.NewRecorder()))
	if res.Class != Refused || !res.Retryable || !strings.Contains(api.CauseOf(res.Err).Error(), "set tls.ca_file") {
		t.Errorf("%v, %s", res.Class, api.CauseOf(res.Err).Error())
	}
}

// TestTheWorkersKeyTakesTheClientsPlace also checks the path prefix, and that no error shows a key.
func TestTheWorkersKeyTakesTheClientsPlace(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Path + " " + r.Header.Get("Authorization") + r.Header.Get("X-Api-Key") + r.Header.Get("Api-Key"); got != "/vllm-a/v1/chat/completions Bearer s3cret" {
			t.Error(got)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, `{"error":"wrong key s3cret"}`)
	}))
	defer s.Close()
	peers := new(network.Peers)
	p, err := network.ParsePeer(s.URL+"/vllm-a", network.PeerConfig{Key: "s3cret", KeyUse: network.KeyAlways})
	if err != nil {
		t.Fatal(err)
	}
	peers.Replace([]*network.Peer{p})
	a := attempt(p.URL, httptest.NewRecorder())
	a.Header = http.Header{"Authorization": {"Bearer client"}, "X-Api-Key": {"client"}, "Api-Key": {"client"}}
	res := newClient(t, func(cfg *Config) { cfg.Peers = peers }).Forward(context.Background(), a)
	if res.Class != Refused || res.Answer == nil || strings.Contains(api.CauseOf(res.Err).Error()+string(res.Answer.Body), "s3cret") {
		t.Errorf("%v, %s", res.Class, api.CauseOf(res.Err).Error())
	}
}
