package network_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/test/testenv"
)

// serverAt serves over TLS with a certificate. clients, if not "", is the certificate that clients must have.
func serverAt(t *testing.T, certFile, keyFile, clients string) string {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.URL.Path+" "+r.Header.Get("Authorization")+r.Header.Get("X-Api-Key")+r.Header.Get("Api-Key"))
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	if clients != "" {
		data, err := os.ReadFile(clients)
		if err != nil {
			t.Fatal(err)
		}
		s.TLS.ClientCAs, s.TLS.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		s.TLS.ClientCAs.AppendCertsFromPEM(data)
	}
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

// get asks for path at the peer with these settings.
func get(t *testing.T, base string, c network.PeerConfig, path string, header ...string) (string, error) {
	t.Helper()
	p, err := network.ParsePeer(base, c)
	if err != nil {
		t.Fatal(err)
	}
	peers := new(network.Peers)
	peers.Replace([]*network.Peer{p})
	tr := network.NewTransport(nil, peers, network.TransportConfig{ConnectTimeout: 5 * time.Second})
	defer tr.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := (&http.Client{Transport: tr}).Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestARefusedCertificateSaysWhatToSet(t *testing.T) {
	cert, key := testenv.Certificate(t, "gpu.internal")
	other, otherKey := testenv.Certificate(t)
	url := serverAt(t, cert, key, "")
	strict := serverAt(t, cert, key, other)
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for _, test := range []struct {
		name, url string
		tls       network.PeerTLS
		err       string
	}{
		{"trusted", url, network.PeerTLS{CAFile: cert}, ""},
		{"another name in the certificate", url, network.PeerTLS{CAFile: cert, ServerName: "gpu.internal"}, ""},
		{"an unknown authority", url, network.PeerTLS{}, "set tls.ca_file"},
		{"a wrong authority", url, network.PeerTLS{CAFile: other}, "set tls.ca_file"},
		{"a wrong name", url, network.PeerTLS{CAFile: cert, ServerName: "gpu.other"}, "set tls.server_name"},
		{"a client certificate", strict, network.PeerTLS{CAFile: cert, CertFile: other, KeyFile: otherKey}, ""},
		{"no client certificate", strict, network.PeerTLS{CAFile: cert}, "set tls.cert_file and tls.key_file"},
		{"a wrong client certificate", strict, network.PeerTLS{CAFile: cert, CertFile: cert, KeyFile: key}, "set tls.cert_file and tls.key_file"},
		{"no TLS", "https" + strings.TrimPrefix(plain.URL, "http"), network.PeerTLS{}, "write http://"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := get(t, test.url, network.PeerConfig{TLS: test.tls}, "/health")
			switch {
			case test.err == "" && (err != nil || got != "/health "):
				t.Errorf("%q, %v", got, err)
			case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
				t.Errorf("the error is %v, want %q in it", err, test.err)
			}
		})
	}
}

func TestARenewedCertificateNeedsNoRestart(t *testing.T) {
	cert, key := testenv.Certificate(t)
	first, firstKey := testenv.Certificate(t)
	url := serverAt(t, cert, key, "")
	p, err := network.ParsePeer(url, network.PeerConfig{TLS: network.PeerTLS{CAFile: first, CertFile: first, KeyFile: firstKey}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Dial(t.Context(), nil); err == nil {
		t.Fatal("the first authority is not the server's")
	}
	renewed, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	replace := func(data []byte, at time.Time) {
		if err := os.WriteFile(first, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(first, at, at); err != nil {
			t.Fatal(err)
		}
	}
	private, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(firstKey, private, 0o600); err != nil {
		t.Fatal(err)
	}
	replace(renewed, time.Now().Add(time.Minute))
	for range 2 {
		c, _, err := p.Dial(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		replace([]byte("half"), time.Now().Add(2*time.Minute)) // the second time: the file is half written
	}
}

func TestAWorkerBehindAUnixSocketAnswers(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "engine.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.Host+" "+r.URL.RequestURI())
	})}}
	s.Start()
	defer s.Close()
	if got, err := get(t, "unix://"+socket, network.PeerConfig{}, "/get_load?x=1"); err != nil || got != "localhost /get_load?x=1" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestTheKeyOfAWorkerGoesWhereItsSettingSays(t *testing.T) {
	cert, key := testenv.Certificate(t)
	url := serverAt(t, cert, key, "")
	for _, test := range []struct {
		use          network.KeyUse
		name, value  string // the client's field
		want, prefix string
	}{
		{"", "Authorization", "Bearer client", "Bearer client", ""},
		{"", "X", "", "", "/vllm-a"},
		{network.KeyIfMissing, "X", "", "Bearer own", "/vllm-a"},
		{network.KeyIfMissing, "Authorization", "Bearer client", "Bearer client", ""},
		{network.KeyIfMissing, "X-Api-Key", "client", "client", ""},
		{network.KeyAlways, "Authorization", "Bearer client", "Bearer own", ""},
		{network.KeyIfMissing, "Api-Key", "client", "Bearer own", ""},
		{network.KeyAlways, "X-Api-Key", "client", "Bearer own", ""},
		{network.KeyAlways, "Api-Key", "client", "Bearer own", ""},
		{"", "Api-Key", "client", "client", ""},
	} {
		c := network.PeerConfig{TLS: network.PeerTLS{CAFile: cert}, Key: "own", KeyUse: test.use}
		got, err := get(t, url+test.prefix, c, "/health", test.name, test.value)
		if want := test.prefix + "/health " + test.want; err != nil || got != want {
			t.Errorf("%q with %s %q: got %q, %v, want %q", test.use, test.name, test.value, got, err, want)
		}
	}
}

func TestURLsOfPeers(t *testing.T) {
	for at, want := range map[string][4]string{
		"http://a":               {"tcp", "a:80", "a", ""},
		"https://a":              {"tcp", "a:443", "a", ""},
		"http://a:8000/p/":       {"tcp", "a:8000", "a:8000", "/p"},
		"http://[fd00::1]:8000":  {"tcp", "[fd00::1]:8000", "[fd00::1]:8000", ""},
		"https://[fd00::1]/x%20": {"tcp", "[fd00::1]:443", "[fd00::1]", "/x%20"},
		"unix:///run/./e.sock":   {"unix", "/run/e.sock", "localhost", ""},
	} {
		p, err := network.ParsePeer(at, network.PeerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if got := [4]string{p.Network, p.Address, p.Host, p.Prefix}; got != want || p.Secure != strings.HasPrefix(at, "https") {
			t.Errorf("%s: %v, want %v", at, got, want)
		}
	}
	for _, at := range []string{"ftp://a", "unix://host/x", "http://", "http://u:p@a", "http://a?x", "a:8000", "http://a:", "https://[fd00::1]:/x"} {
		if p, err := network.ParsePeer(at, network.PeerConfig{}); err == nil {
			t.Errorf("%s: %+v", at, p)
		}
	}
}

func TestAPeerStaysWhileItsSettingsStay(t *testing.T) {
	peer := func(key string) *network.Peer {
		p, err := network.ParsePeer("http://a", network.PeerConfig{Key: key})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	peers, first := new(network.Peers), peer("1")
	peers.Replace([]*network.Peer{first})
	peers.Replace([]*network.Peer{peer("1")})
	if p, _ := peers.Of("http://a"); p != first || first.Gone() {
		t.Error("a peer with the same settings is another peer")
	}
	peers.Replace([]*network.Peer{peer("2")})
	if p, _ := peers.Of("http://a"); p.Key != "2" || !first.Gone() {
		t.Error("the peer has its old key")
	}
	peers.Replace(nil)
	if p, _ := peers.Of("http://a"); p.Key != "" {
		t.Error("a peer that left has its key")
	}
}
