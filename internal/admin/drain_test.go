package admin_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/admin"
)

func TestAnOperatorDrainsAWorker(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	first := func() *fleet.Worker { return f.Snapshot().Workers()[0] }
	var underway fleet.Reservation
	if !f.Reserve(&underway, first().Holders[0], fleet.Work{}, 1) {
		t.Fatal("no request could be reserved")
	}
	for _, test := range []struct {
		draining, want string
	}{
		{"true", `"requests": 1`}, {"true", `"draining": true`}, {"false", `"draining": false`},
	} {
		status, body := ask(t, a, http.MethodPatch, "/admin/workers", `{"url": "http://a:1/", "draining": `+test.draining+`}`)
		if status != http.StatusOK || !strings.Contains(body, test.want) {
			t.Errorf("draining %s: %d %s", test.draining, status, body)
		}
		if w := first(); w.Draining != (test.draining == "true") || w.Ready == w.Draining || f.Snapshot().Workers()[1].Draining {
			t.Errorf("draining %s: %+v", test.draining, w)
		}
		f.Put("http://a:1", first().Facts) // a probe does not end the drain
	}
}

func TestAWrongChangeOfAWorkerIsRefused(t *testing.T) {
	a, _ := newAdmin(t, admin.DefaultConfig(), nil)
	for body, want := range map[string]string{
		"":                                     "read the change of a worker",
		`{"url": "http://a:1"}`:                "url and a change are needed",
		`{"url": "http://a:1", "drain": true}`: "unknown field",
		`{"url": "http://a:1", "draining": "yes"}`: "read the change of a worker",
		`{"url": "http://a:1", "draining": true}{`: "more than one value",
		`{"url": "http://c:1", "draining": true}`:  "no worker has the URL",
		`{"url": "` + strings.Repeat("x", 70<<10):  "too large",
	} {
		if status, got := ask(t, a, http.MethodPatch, "/admin/workers", body); status < 400 || status >= 500 || !strings.Contains(got, want) {
			t.Errorf("%.60s: %d %s, want %q", body, status, got, want)
		}
	}
	if status, _ := ask(t, a, http.MethodPut, "/admin/workers", "{}"); status != http.StatusMethodNotAllowed {
		t.Errorf("PUT: %d", status)
	}
}
