package admin_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/telemetry"
)

func TestARoleIsPredictedAndChanged(t *testing.T) {
	a, f, workers := changeable(t, admin.DefaultConfig())
	pair(f)
	for range 4 {
		a.Telemetry.Finished(&telemetry.Record{Worker: "http://b:1", Status: 200, PromptTokens: 100, PredictedTokens: 50, KeptLevels: []string{"5s"}, BrokenLevels: []string{"1s"}})
	}
	var got admin.RoleChanged
	change := func(query, body string, want int) string {
		t.Helper()
		status, text := ask(t, a, "POST", "/admin/workers/role"+query, body)
		got = admin.RoleChanged{}
		if err := json.Unmarshal([]byte(text), &got); err != nil || status != want {
			t.Fatalf("%d %v: %s", status, err, text)
		}
		return text
	}
	change("?predict=1", `{"url":"http://b:1","role":"both"}`, 200)
	if p := got.Prediction; got.Changed || got.Before != "decode" || p.Decisions < 4 || p.HitRate != 0.5 || p.HitRateAfter != 0.5 || *p.KeptLevels != 0.5 || p.Laboratory == nil || !strings.Contains(p.Laboratory.Error, "at least 50 are needed") {
		t.Errorf("%+v", got)
	}
	if workers.Target("http://b:1").Role != "" {
		t.Error("a prediction changed the role")
	}
	change("", `{"url":"http://b:1","role":"both"}`, 200)
	if !got.Changed || workers.Target("http://b:1").Role != "both" || !strings.HasPrefix(got.How, "the engine has no role switch") {
		t.Errorf("%+v", got)
	}
	if err := workers.Replace([]discovery.Target{{URL: "http://a:1"}, {URL: "http://b:1", Role: "decode"}}); err != nil || workers.Target("http://b:1").Role != "both" {
		t.Errorf("a reload ends the role of the operator: %v", err)
	}
	if text := change("", `{"url":"http://b:1","role":"prefill"}`, 409); !strings.Contains(text, "no other worker would generate answers of") {
		t.Error(text)
	}
	change("", `{"url":"http://b:1","role":"prefill","force":true}`, 200)
	if workers.Target("http://b:1").Role != "prefill" {
		t.Error("the force has no effect")
	}
	for _, c := range []struct {
		body string
		want int
	}{{`{"url":"http://b:1"}`, 400}, {`{"url":"http://b:1","role":"boss"}`, 400}, {`{"url":"http://c:1","role":"both"}`, 404}, {`{"url":"http://b:1","role":"both","drain":"soon"}`, 400}, {`{`, 400}} {
		if status, text := ask(t, a, "POST", "/admin/workers/role", c.body); status != c.want {
			t.Errorf("%s: %d %s", c.body, status, text)
		}
	}
	// SGLang drops its cache.
	w := f.Snapshot().Workers()[1]
	facts := w.Facts
	facts.Engine = fleet.EngineSGLang
	f.Put(w.URL, facts)
	change("?predict=1", `{"url":"http://b:1","role":"decode"}`, 200)
	if got.Prediction.HitRateAfter != 0 || !strings.Contains(got.How, "drops its cache") {
		t.Errorf("%+v", got)
	}
}

// A divided request finds its cached tokens at the prefill worker, so the decode worker's change loses none of them.
func TestTheHitRateAfterAChangeIsThatOfTheLeg(t *testing.T) {
	a, f, _ := changeable(t, admin.DefaultConfig())
	pair(f)
	for _, r := range []telemetry.Record{
		{Worker: "http://b:1", PrefillWorker: "http://a:1", Status: 200, PromptTokens: 100, PredictedTokens: 60},
		{Worker: "http://b:1", Status: 200, PromptTokens: 100, PredictedTokens: 20},
	} {
		a.Telemetry.Finished(&r)
	}
	for _, c := range []struct {
		url, role string
		want      float64
	}{{"a", "decode", 0.1}, {"a", "both", 0.4}, {"b", "prefill", 0.3}, {"b", "both", 0.4}} {
		var got admin.RoleChanged
		status, text := ask(t, a, "POST", "/admin/workers/role?predict=1", `{"url":"http://`+c.url+`:1","role":"`+c.role+`"}`)
		if err := json.Unmarshal([]byte(text), &got); err != nil || status != 200 || got.Prediction.HitRate != 0.4 || got.Prediction.HitRateAfter != c.want {
			t.Errorf("%+v: %d %s", c, status, text)
		}
	}
}

// The second order comes before the worker of the first one is probed again.
func TestTwoChangesOfRolesDoNotRelyOnEachOther(t *testing.T) {
	a, f, _ := changeable(t, admin.DefaultConfig())
	pair(f)
	for _, w := range f.Snapshot().Workers() {
		facts := w.Facts
		facts.Role = fleet.RoleBoth
		f.Put(w.URL, facts)
		f.SetHealth(w.ID, true, "")
	}
	if status, text := ask(t, a, "POST", "/admin/workers/role", `{"url":"http://a:1","role":"prefill"}`); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if status, text := ask(t, a, "POST", "/admin/workers/role", `{"url":"http://b:1","role":"prefill"}`); status != 409 {
		t.Errorf("no worker generates answers: %d %s", status, text)
	}
}
