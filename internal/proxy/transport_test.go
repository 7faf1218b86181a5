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
			l, err = tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
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
	p, err := network.ParsePeer(url, network.PeerConfig{TLS: network.TLS{CAFile: v.certFile}})
	if err != nil {
		t.Fatal(err)
	}
	v.all = append(v.all, p)
	v.peers.Replace(v.all)
	return l, url
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

func TestEveryTransportBehavesTheSame(t *testing.T) {
	plain := via
	defer func() { via = plain }()
	for _, name := range []string{"https", "unix"} {
		via = &transport{name: name}
		if name == "https" {
			via.certFile, via.keyFile = testenv.Certificate(t)
		}
		for test, run := range conformance {
			t.Run(name+"/"+test, run)
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
		if got := r.URL.Path + " " + r.Header.Get("Authorization") + r.Header.Get("X-Api-Key"); got != "/vllm-a/v1/chat/completions Bearer s3cret" {
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
	a.Header = http.Header{"Authorization": {"Bearer client"}, "X-Api-Key": {"client"}}
	res := newClient(t, func(cfg *Config) { cfg.Peers = peers }).Forward(context.Background(), a)
	if res.Class != Refused || res.Answer == nil || strings.Contains(api.CauseOf(res.Err).Error()+string(res.Answer.Body), "s3cret") {
		t.Errorf("%v, %s", res.Class, api.CauseOf(res.Err).Error())
	}
}
