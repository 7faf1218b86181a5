package discovery

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// asking returns a DNS source for the URLs, its watcher, which does not run, and the server that it asks.
func asking(t *testing.T, urls ...string) (*DNS, *Watcher, *testenv.DNS) {
	t.Helper()
	server := testenv.NewDNS(t)
	c := DefaultDNSConfig()
	for _, u := range urls {
		c.Names = append(c.Names, Target{URL: u, Labels: map[string]string{"zone": "a"}})
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	s, err := NewWatcher(fleet.New(fleet.Config{}), nil, Config{}, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	return NewDNS(c, s, server.Resolver(), log), s, server
}

// urls returns the URLs that are watched.
func (s *Watcher) urls() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.targets {
		all = append(all, l.URL)
	}
	slices.Sort(all)
	return all
}

func TestTheAddressesOfANameAreWorkers(t *testing.T) {
	d, s, server := asking(t, "http://engines.test.:8000/base", "http://_http._tcp.engines.test.", "http://six.test.")
	server.Set("engines.test.", "10.0.0.2", "10.0.0.1")
	server.Set("_http._tcp.engines.test.", "gpu-1.test.:8001", "gpu-2.test.:8002")
	server.Set("six.test.", "fd00::1")
	d.look(t.Context())
	want := []string{"http://10.0.0.1:8000/base", "http://10.0.0.2:8000/base", "http://[fd00::1]", "http://gpu-1.test:8001", "http://gpu-2.test:8002"}
	if got := s.urls(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := s.Target("http://10.0.0.1:8000/base"); got.Labels["zone"] != "a" {
		t.Errorf("the settings of the entry are not the worker's: %+v", got)
	}
	server.Set("engines.test.", "10.0.0.3", "fd00::3") // both addresses of one machine
	d.look(t.Context())
	if got := s.urls(); !slices.Equal(got, append([]string{"http://10.0.0.3:8000/base"}, want[2:]...)) {
		t.Errorf("after another answer: %v", got)
	}
}

// A certificate names the DNS name and not the address. The target of an SRV record is a name itself.
func TestWorkersOfAnHTTPSNameHaveCertificatesOfTheName(t *testing.T) {
	d, s, server := asking(t, "https://engines.test.:8443", "https://_https._tcp.engines.test.")
	server.Set("engines.test.", "10.0.0.1")
	server.Set("_https._tcp.engines.test.", "gpu-1.test.:8001")
	d.look(t.Context())
	for url, want := range map[string]string{"https://10.0.0.1:8443": "engines.test.", "https://gpu-1.test:8001": ""} {
		if got := s.Target(url); got.URL != url || got.TLS.ServerName != want {
			t.Errorf("%s: the name in the certificate is %q, want %q", url, got.TLS.ServerName, want)
		}
	}
}

func TestTheWorkersOfTheLastAnswerStayWithoutAnAnswer(t *testing.T) {
	d, s, server := asking(t, "http://engines.test.:8000")
	server.Set("engines.test.", "10.0.0.1", "10.0.0.2")
	d.look(t.Context())
	want := s.urls()
	for name, fail := range map[string]func(){
		"the name is gone": func() { server.Set("engines.test.") },
		"the server fails": func() { server.Fail(true) },
	} {
		fail()
		d.look(t.Context())
		if got := s.urls(); len(want) != 2 || !slices.Equal(got, want) || d.failed[0] == "" {
			t.Errorf("%s: %v, want %v; failed: %q", name, got, want, d.failed[0])
		}
	}
	server.Fail(false)
	server.Set("engines.test.", "10.0.0.2")
	d.look(t.Context())
	if got := s.urls(); len(got) != 1 || d.failed[0] != "" {
		t.Errorf("after the failure: %v", got)
	}
}

// The target "." means that a service is not offered (RFC 2782). Port 0 and a name with a space are mistakes. The log
// names them once, and not at each question.
func TestRecordsThatCannotBeUsedLeaveTheOthers(t *testing.T) {
	d, s, server := asking(t, "http://_http._tcp.engines.test.")
	var log bytes.Buffer
	d.log = slog.New(slog.NewTextHandler(&log, nil))
	for _, bad := range []string{".:8003", "gpu-3.test.:0", "gpu 3.test.:8003"} {
		log.Reset()
		server.Set("_http._tcp.engines.test.", "gpu-1.test.:8001", bad, "gpu-2.test.:8002")
		d.look(t.Context())
		d.look(t.Context())
		if got := s.urls(); !slices.Equal(got, []string{"http://gpu-1.test:8001", "http://gpu-2.test:8002"}) || d.failed[0] != "" {
			t.Errorf("%s: %v, failed: %q", bad, got, d.failed[0])
		}
		if strings.Count(log.String(), "records that cannot be used") != 1 || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%s: log %s", bad, log.String())
		}
	}
	server.Set("_http._tcp.engines.test.", ".:0")
	d.look(t.Context())
	if got := s.urls(); len(got) != 2 || !strings.Contains(d.failed[0], "no record that can be used") {
		t.Errorf("only a record that cannot be used: %v, failed: %q", got, d.failed[0])
	}
}

// Servers shuffle their answers. A name with more addresses than it may have workers has the same workers each time.
func TestTheWorkersOfALongAnswerAreTheSameInAnyOrder(t *testing.T) {
	var all []Target
	for i := range maxAnswers + 100 {
		t := Target{URL: fmt.Sprintf("http://10.0.%d.%d", i/200, i%200)}
		all = append(all, t, t)
	}
	want := inOrder(slices.Clone(all))
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if got := inOrder(all); len(got) != maxAnswers || !slices.EqualFunc(got, want, Target.Equal) {
		t.Errorf("%d workers, or others than before", len(got))
	}
}

func TestNamesThatCannotWorkAreRefused(t *testing.T) {
	for given, want := range map[string]string{
		"http://10.0.0.1:8000":         "is an address",
		"unix:///run/a.sock":           "has no DNS name",
		"http://_http._tcp.a.test:800": "give the port",
		"engines":                      "write http://engines",
	} {
		c := DefaultDNSConfig()
		c.Names = []Target{{URL: given}}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "names[0]: ") {
			t.Errorf("%s: %v, want %q", given, err, want)
		}
	}
	if err := (DNSConfig{Interval: time.Millisecond}).Validate(); err == nil {
		t.Error("an interval of 1 ms is accepted")
	}
}
