package testenv_test

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// A tenant's limit of requests under way counts the requests at all routers. The requests of a router that is killed
// do not count any more.
func TestATenantsLimitCountsItsRequestsAtAllRouters(t *testing.T) {
	testenv.Binary(t)
	tenants := ofTenant("limited", "key-l", ", max_concurrent: 2") + ofTenant("steady", "key-s", "")
	settings := embeddedServers(t, make([][]*testenv.Cable, 2))
	r := startRouters(t, 2, startEngines(t, 2), func(i int) string {
		return strings.TrimSuffix(settings(i), "}") + ", key: \"a key of the test\"}\ntenants:\n" + tenants
	})
	r.together(t, 1)
	begin := func(i int) {
		t.Helper()
		// The router may not have heard yet that a request at the other router has ended.
		testenv.Until(t, fmt.Sprintf("router %d takes a stream", i), func() bool {
			body := `{"max_tokens":30000,"min_tokens":30000,"ignore_eos":true,"stream":true,"messages":[{"role":"user","content":"hello"}]}`
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.all[i].URL+"/v1/chat/completions", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer key-l")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatalf("begin a stream: %v", err)
			}
			t.Cleanup(func() { _ = resp.Body.Close() })
			return resp.StatusCode == http.StatusOK
		})
	}
	answers := func(i int, key string, want int) {
		t.Helper()
		testenv.Until(t, fmt.Sprintf("router %d answers %s with %d", i, key, want), func() bool {
			status, _, _ := withKey(http.DefaultClient, r.all[i].URL, key)
			return status == want
		})
	}
	answers(1, "key-l", http.StatusOK)
	begin(0)
	answers(1, "key-l", http.StatusOK)
	begin(0)
	answers(1, "key-l", http.StatusTooManyRequests)
	answers(1, "key-s", http.StatusOK)
	_ = syscall.Kill(r.all[0].PID(), syscall.SIGKILL)
	answers(1, "key-l", http.StatusOK)
	begin(1)
	begin(1)
	answers(1, "key-l", http.StatusTooManyRequests)
}
