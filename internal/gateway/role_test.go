package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// The engine's answers are those of SGLang 0.5.23 (srt/disaggregation/role_switch.py).
func TestARoleIsSwitchedAtAnIdleWorkerOnly(t *testing.T) {
	const notIdle = `{"success":false,"message":"instance is not idle; drain all requests before switching","safe_to_restore":true}`
	const broken = `{"success":false,"message":"instance is unhealthy after a failed role switch; restart required","safe_to_restore":false}`
	const off = `{"success":false,"message":"--enable-pd-role-switch is not set on this server","safe_to_restore":false}`
	for _, c := range []struct {
		name, answer string
		status       int
		healthy      bool
		says         string // "" is no error
		drained      bool   // afterwards
	}{
		{"it switches", `{"success":true,"message":"ok","old_role":"prefill","new_role":"decode"}`, 200, true, "", false},
		{"it refuses", notIdle, 400, true, "it refused: instance is not idle", false},
		{"it cannot switch", off, 400, true, "it refused: --enable-pd-role-switch is not set", false},
		{"it is broken", broken, 400, false, "stays drained: instance is unhealthy after a failed role switch", true},
		{"it has no such path", `{"detail":"Not Found"}`, 404, true, "the engine has no /pd_role_switch", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var body atomic.Value
			var f *fixture
			url := worker(t, func(w http.ResponseWriter, r *http.Request) {
				text, _ := io.ReadAll(r.Body)
				switch r.URL.Path {
				case "/pd_role_switch":
					if !f.fleet.Snapshot().Workers()[0].Draining {
						t.Error("the worker is told before it is drained")
					}
					body.Store(string(text))
					w.WriteHeader(c.status)
					_, _ = io.WriteString(w, c.answer)
				case "/health":
					if !c.healthy {
						w.WriteHeader(http.StatusServiceUnavailable)
					}
				}
			})
			f = serve(t, func(s *settings) { s.facts.Engine, s.facts.Role = fleet.EngineSGLang, fleet.RolePrefill }, url)
			w := f.fleet.Snapshot().Workers()[0]
			said, err := f.SwitchRole(t.Context(), w, fleet.RoleDecode, time.Minute, unprobed)
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) || said != c.answer {
				t.Errorf("%q, %v", said, err)
			}
			if body.Load() != `{"new_role":"decode"}` {
				t.Errorf("told %v", body.Load())
			}
			if now := f.fleet.Snapshot().Workers()[0]; now.Draining != c.drained || (now.Facts.Role == fleet.RoleDecode) != (err == nil) {
				t.Errorf("draining %v, role %s", now.Draining, now.Facts.Role)
			}
		})
	}
}

func TestABusyWorkerIsNotToldToSwitch(t *testing.T) {
	f := serve(t, func(s *settings) { s.facts.Engine = fleet.EngineSGLang }, worker(t, func(http.ResponseWriter, *http.Request) { t.Error("it is told") }))
	w := f.fleet.Snapshot().Workers()[0]
	var r fleet.Reservation
	if !f.fleet.Reserve(&r, w.Holders[0], fleet.Work{PromptTokens: 10}, time.Now().UnixNano()) {
		t.Fatal("not reserved")
	}
	defer r.Release(time.Now().UnixNano())
	if _, err := f.SwitchRole(t.Context(), w, fleet.RoleDecode, 100*time.Millisecond, unprobed); err == nil || !strings.Contains(err.Error(), "still has requests after 100ms") {
		t.Errorf("%v", err)
	}
	if f.fleet.Snapshot().Workers()[0].Draining {
		t.Error("it is still drained")
	}
}

// A decode worker has no bootstrap server. After it became a prefill worker, it gets no legs before the router knows
// where other engines find it.
func TestANewPrefillWorkerGetsNoLegsBeforeItsAddressIsKnown(t *testing.T) {
	f := serve(t, func(s *settings) {
		s.facts.Engine, s.facts.Role = fleet.EngineSGLang, fleet.RoleDecode
		s.facts.Transfer = fleet.Transfer{Connector: "sglang", LegsOnly: true}
	}, worker(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/pd_role_switch" {
			_, _ = io.WriteString(w, `{"success":true,"message":"ok"}`)
		}
	}))
	w := f.fleet.Snapshot().Workers()[0]
	ended := make(chan error, 1)
	go func() { // ends with the switch
		_, err := f.SwitchRole(t.Context(), w, fleet.RolePrefill, time.Minute, unprobed)
		ended <- err
	}()
	testenv.Until(t, "the worker has its new role", func() bool { return f.fleet.Snapshot().Workers()[0].Facts.Role == fleet.RolePrefill })
	if !f.fleet.Snapshot().Workers()[0].Draining || len(ended) > 0 {
		t.Error("the drain has ended")
	}
	facts := f.fleet.Snapshot().Workers()[0].Facts
	facts.Transfer.Host, facts.Transfer.Port = "10.0.0.1", 8998
	f.fleet.Put(w.URL, facts)
	if err := <-ended; err != nil || f.fleet.Snapshot().Workers()[0].Draining {
		t.Errorf("%v", err)
	}
}

func unprobed() error { return nil }
