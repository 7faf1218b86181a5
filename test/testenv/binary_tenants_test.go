package testenv_test

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// withKey sends a chat request with an API key. It returns status 0 if there was no answer.
func withKey(client *http.Client, url, key string) (status int, header http.Header, body string) {
	req, err := http.NewRequest(http.MethodPost, url+"/v1/chat/completions", strings.NewReader(`{"messages":[{"role":"user","content":"hello"}],"max_tokens":4}`))
	if err != nil {
		return 0, nil, err.Error()
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err.Error()
	}
	return resp.StatusCode, resp.Header, string(text)
}

// ofTenant returns a line of tenants.
func ofTenant(name, key, limits string) string {
	d := sha256.Sum256([]byte(key))
	return fmt.Sprintf("  - {name: %s, keys_sha256: [%s]%s}\n", name, hex.EncodeToString(d[:]), limits)
}

// TestTenantsLimitsReloadsAndCertificatesOfTheBinary: the built router with TLS limits its tenants. While clients send
// requests, tenants change and the certificate is renewed, and no request of a tenant that stays fails.
func TestTenantsLimitsReloadsAndCertificatesOfTheBinary(t *testing.T) {
	dir, authority := t.TempDir(), testenv.NewAuthority(t)
	cert, key, file := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "warmpath.yaml")
	authority.Issue(cert, key, 100)
	write := func(tenants string) {
		t.Helper()
		text := fmt.Sprintf("watch_interval: 50ms\ntls: {cert_file: %s, key_file: %s}\ntenants:\n%s", cert, key, tenants)
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	steady, limited := ofTenant("steady", "key-s", ""), ofTenant("limited", "key-l", ", requests_per_second: 0.001, burst: 2")
	write(steady + limited)
	worker := mock(t, func(c *mockengine.Config) { c.Speed = 100 })
	g := testenv.Serve(t, "--config", file, "--worker", worker.URL())
	url := strings.Replace(g.URL, "http:", "https:", 1)
	testenv.WaitFor(t, 30*time.Second, "the gateway to be ready", func() error { return testenv.Reachable(g.Admin + "/readiness") })
	newClient := func() *http.Client {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority.Pool}}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport, Timeout: 30 * time.Second}
	}
	client := newClient()
	for i, want := range []int{200, 200, 429} {
		status, header, body := withKey(client, url, "key-l")
		if status != want || header.Get("X-Ratelimit-Limit-Requests") != "2" || want == 429 && header.Get("Retry-After") == "" {
			t.Errorf("request %d: %d %s %v", i+1, status, body, header)
		}
	}
	if status, _, body := withKey(client, url, "key-n"); status != 401 {
		t.Errorf("an unknown key: %d %s", status, body)
	}

	var stop atomic.Bool
	var clients sync.WaitGroup
	var served atomic.Int64
	for range 4 {
		own := newClient()
		clients.Go(func() { // ends when stop is set
			for !stop.Load() {
				status, _, body := withKey(own, url, "key-s")
				if status != 200 {
					t.Errorf("a tenant that stays: %d %s", status, body)
					return
				}
				served.Add(1)
			}
		})
	}
	for round := range 3 {
		name, k := fmt.Sprintf("round-%d", round), fmt.Sprintf("key-%d", round)
		write(steady + limited + ofTenant(name, k, ""))
		authority.Issue(cert, key, int64(101+round))
		testenv.WaitFor(t, 30*time.Second, "the new tenant to be served", func() error {
			if status, _, body := withKey(client, url, k); status != 200 {
				return fmt.Errorf("%d %s", status, body)
			}
			return nil
		})
		testenv.WaitFor(t, 30*time.Second, "the new certificate", func() error {
			c, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), &tls.Config{RootCAs: authority.Pool})
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			if serial := c.ConnectionState().PeerCertificates[0].SerialNumber.Int64(); serial != int64(101+round) {
				return fmt.Errorf("serial %d", serial)
			}
			return nil
		})
	}
	stop.Store(true)
	clients.Wait()
	if status, _, _ := withKey(client, url, "key-l"); status != 429 {
		t.Errorf("a reload forgot what a tenant has used: %d", status)
	}
	if status, _, _ := withKey(client, url, "key-0"); status != 401 {
		t.Errorf("a removed tenant: %d", status)
	}
	if served.Load() == 0 {
		t.Error("no request was served during the reloads")
	}
	for _, k := range []string{"key-s", "key-l", "key-n"} {
		if strings.Contains(g.Log(), k) {
			t.Errorf("the log has the key %s", k)
		}
	}
}
