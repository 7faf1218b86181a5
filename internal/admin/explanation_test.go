package admin_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/policy"
)

const question = `{"model":"m","messages":[{"role":"user","content":"x"}],"session_id":"s"}`

func TestSeveralPoliciesAreAskedAboutTheSameMoment(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	status, text := ask(t, a, "POST", "/admin/explain?policy=kv_aware,least_load", question)
	var got admin.Explanations
	if err := json.Unmarshal([]byte(text), &got); err != nil || status != 200 || len(got.Policies) != 2 {
		t.Fatalf("%d %v: %s", status, err, text)
	}
	if got.Policies[0].Policy != "kv_aware" || got.Policies[1].Policy != "least_load" {
		t.Errorf("%s, %s", got.Policies[0].Policy, got.Policies[1].Policy)
	}
	if got.Agree != (got.Policies[0].Worker == got.Policies[1].Worker) {
		t.Errorf("agree %v: %s and %s", got.Agree, got.Policies[0].Worker, got.Policies[1].Worker)
	}
	if f.Snapshot().Load(0).Processed != 0 {
		t.Error("explaining counts as routing")
	}
	for _, list := range []string{"kv_aware,best", ",", "kv_aware,", strings.Repeat("kv_aware,", 40)} {
		if status, text := ask(t, a, "POST", "/admin/explain?policy="+list, question); status != 400 || !strings.Contains(text, "policy: ") {
			t.Errorf("%q: %d %s", list, status, text)
		}
	}
}

func TestAFallbackSaysHowTheWorkerWithTheLongestMatchFailed(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	now := time.Now()
	for range 3 {
		f.ObserveScope(0, fleet.ScopeOf("m", "/v1/chat/completions"), fleet.OutcomeFailed, now.UnixNano())
	}
	useless := "its answers for this model and endpoint were useless, others' were not"
	for _, want := range []string{useless, useless + "; its last failure: refused: answered 401"} {
		_, text := ask(t, a, "POST", "/admin/explain?policy=kv_aware", question)
		var e admin.Explanation
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		if e.Branch != "fallback" || e.Best == nil || e.Best.WhyNot != want {
			t.Errorf("%s: best match %+v, want %q", e.Branch, e.Best, want)
		}
		if i := slices.IndexFunc(e.Candidates, func(c admin.Candidate) bool { return c.Worker == "http://a:1" }); e.Candidates[i].Why != want {
			t.Errorf("why: %q, want %q", e.Candidates[i].Why, want)
		}
		for _, failed := range []string{"http://a:1: broken: cut", "http://a:1: refused: answered 401", "http://b:1: refused: answered 404"} {
			a.Telemetry.Finished(&telemetry.Record{Worker: "http://b:1", Status: 200, Failed: []string{failed}})
		}
	}
}

// TestAnExplanationWithoutTrustClaimsNoMiss: the first worker has a part of the prompt, but while the index service is
// down the router knows of no cache.
func TestAnExplanationWithoutTrustClaimsNoMiss(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	for _, w := range f.Snapshot().Workers() {
		f.SetTrust(w.Holders[0], fleet.TrustNone, "the index service does not answer")
	}
	_, text := ask(t, a, "POST", "/admin/explain?policy=marginal", question)
	var e admin.Explanation
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatal(err)
	}
	const want = "the caches are not known, because the index service does not answer: the lowest predicted cost"
	if e.Reason != want || !strings.Contains(e.Summary, "("+want+")") {
		t.Errorf("reason %q, summary %q, want %q", e.Reason, e.Summary, want)
	}
	if i := slices.IndexFunc(e.Candidates, func(c admin.Candidate) bool { return c.Chosen }); e.Candidates[i].Why != want {
		t.Errorf("why %q, want %q", e.Candidates[i].Why, want)
	}
}

func TestAnExplanationNamesTheTermsAndTheSession(t *testing.T) {
	a, _ := newAdmin(t, admin.DefaultConfig(), nil)
	_, text := ask(t, a, "POST", "/admin/explain?policy=kv_aware", question)
	var e admin.Explanation
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatal(err)
	}
	if len(e.Terms) == 0 || e.SessionSource != "session_id" || strings.Contains(text, `"s"`) || e.Queued {
		t.Errorf("terms %q, session from %q, queued %v", e.Terms, e.SessionSource, e.Queued)
	}
	for _, c := range e.Candidates {
		sum := 0.0
		for _, name := range e.Terms {
			v, ok := c.Terms[name]
			if !ok {
				t.Errorf("%s has no %s", c.Worker, name)
			}
			sum += v
		}
		if sum != c.Score {
			t.Errorf("%s: the terms %v are %v, the score %v", c.Worker, c.Terms, sum, c.Score)
		}
	}
	if e.Best != nil {
		t.Errorf("the best match was chosen, and still: %+v", e.Best)
	}
}

func TestAnExplanationShowsTheServiceLevelsOfTheRequest(t *testing.T) {
	a, _ := newAdmin(t, admin.DefaultConfig(), nil)
	explained := func(headers ...string) admin.Explanation {
		t.Helper()
		status, text := ask(t, a, "POST", "/admin/explain?policy=kv_aware,marginal", question, headers...)
		var all admin.Explanations
		if err := json.Unmarshal([]byte(text), &all); err != nil || status != 200 || !slices.Equal(all.Policies[0].ServiceLevels, all.Policies[1].ServiceLevels) {
			t.Fatalf("%d %v: %s", status, err, text)
		}
		return *all.Policies[0]
	}
	if got := explained().ServiceLevels; got == nil || len(got) > 0 {
		t.Errorf("no levels are set: %#v", got)
	}
	a.Gateway.UseServiceLevels(gateway.ServiceLevels{All: fleet.DefaultServiceLevels(), ByRequest: true})
	if got := explained().ServiceLevels; !slices.Equal(got, []string{"5s/100ms", "2s/50ms"}) {
		t.Errorf("the configured levels: %q", got)
	}
	if got := explained("X-Warmpath-Service-Levels", "1s").ServiceLevels; !slices.Equal(got, []string{"1s"}) {
		t.Errorf("the levels of the header: %q", got)
	}
	if status, text := ask(t, a, "POST", "/admin/explain", question, "X-Warmpath-Service-Levels", "fast"); status != 400 || !strings.Contains(text, "must list up to 4 levels") {
		t.Errorf("a header that cannot be read: %d %s", status, text)
	}
}

func TestAnExplanationSaysHowLongAWorkerIsLimited(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	now := time.Now()
	f.Limit(0, "", now.Add(time.Hour).UnixNano(), now.UnixNano())
	_, text := ask(t, a, "POST", "/admin/explain?policy=kv_aware", question)
	var e admin.Explanation
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatal(err)
	}
	c := e.Candidates[slices.IndexFunc(e.Candidates, func(c admin.Candidate) bool { return c.Worker == "http://a:1" })]
	if want := "answered 429: gets no requests for another "; !strings.HasPrefix(c.LeftOut, want) || !strings.Contains(c.Why, want) {
		t.Errorf("left out: %q, why: %q", c.LeftOut, c.Why)
	}
}

func TestAnExplanationSaysWhyTheBestMatchWasNotTaken(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	f.SetHealth(f.Snapshot().Workers()[0].ID, false, "away")
	_, text := ask(t, a, "POST", "/admin/explain?policy=kv_aware", question)
	var e admin.Explanation
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatal(err)
	}
	if e.Worker != "http://b:1" || e.Best == nil || e.Best.Worker != "http://a:1" || e.Best.PredictedTokens != 64 || e.Best.WhyNot != "unavailable: away" {
		t.Errorf("%s was chosen, the best match is %+v", e.Worker, e.Best)
	}
}

// The path of a request, or the members of its body, say of which form it is.
func TestRequestsOfEveryMatchedDialectAreExplained(t *testing.T) {
	a, _ := newAdmin(t, admin.DefaultConfig(), nil)
	for _, c := range []struct{ path, body, origin string }{
		{"", `{"model":"m","system":"s","messages":[{"role":"user","content":"x"}],"max_tokens":3}`, ""},
		{"?path=/v1/messages", `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":3}`, ""},
		{"", `{"model":"m","input":"x"}`, ""},
		{"", `{"model":"m","input_ids":[1,2,3]}`, "the ids are in the body"},
		{"", `{"model":"m","text":"x"}`, ""},
		{"", `{"model":"m","prompt":[1,2,3]}`, "the ids are in the body"},
		{"?path=/v1/messages", `{"model":"m","messages":3}`, "error"},
	} {
		status, text := ask(t, a, "POST", "/admin/explain"+c.path, c.body)
		if wrong := status != 200; wrong != (c.origin == "error") || !strings.Contains(text, c.origin) {
			t.Errorf("%s %s: %d %s", c.path, c.body, status, text)
		}
	}
}

// pair makes the first worker of newAdmin a prefill worker, and the second one a decode worker.
func pair(f *fleet.Fleet) {
	for i, role := range []fleet.Role{fleet.RolePrefill, fleet.RoleDecode} {
		w := f.Snapshot().Workers()[i]
		facts := w.Facts
		facts.Role = role
		facts.Transfer = fleet.Transfer{Connector: "nixl", Host: "10.0.0.1", Port: 5600 + i, EngineIDs: []string{"e"}, TensorParallel: 1, TokenBytes: 1 << 17}
		f.Put(w.URL, facts)
	}
}

func TestAnExplanationShowsBothLegsAndTheirTimes(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	pair(f)
	divide := func(mode policy.Mode) admin.Explanation {
		t.Helper()
		if err := a.Router.ChangePolicies(warmpath.PolicyChange{Standard: "marginal", Legs: warmpath.Legs{Mode: mode, UncachedTokenThreshold: -1}}); err != nil {
			t.Fatal(err)
		}
		status, text := ask(t, a, "POST", "/admin/explain", question)
		var e admin.Explanation
		if err := json.Unmarshal([]byte(text), &e); err != nil || status != 200 {
			t.Fatalf("%d %v: %s", status, err, text)
		}
		return e
	}
	e := divide(policy.ModeAlways)
	d, leg := e.Division, e.Prefill
	if d == nil || !d.Divided || d.Predicted == nil || d.Predicted.WholeMS <= 0 || d.Predicted.TransferMS <= 0 || d.TransferTokens != 100 || d.Bypass != "" || d.Why == "" {
		t.Fatalf("%+v", d)
	}
	if d.Link == nil || d.Link.From != "http://a:1" || d.Link.To != "http://b:1" || d.Link.BaseMS <= 0 || d.Link.Samples != 0 {
		t.Errorf("%+v", d.Link)
	}
	if leg == nil || leg.Worker != "http://a:1" || leg.MatchTokens != 64 || len(leg.Candidates) != 1 || !leg.Candidates[0].Chosen || len(leg.Terms) == 0 || leg.Candidates[0].Why == "" {
		t.Errorf("%+v", leg)
	}
	if c := e.Candidates[0]; e.Worker != "http://b:1" || c.FetchedTokens != 100 || c.FetchedFrom != "http://a:1" || c.TransferMS != d.Predicted.TransferMS || c.UncachedTokens != 0 {
		t.Errorf("%+v", c)
	}
	e = divide(policy.ModeAuto)
	if d := e.Division; d == nil || d.Divided || d.Bypass != "cost" || d.Predicted == nil || d.Predicted.WholeMS > d.Predicted.PrefillMS+d.Predicted.DecodeMS || e.Prefill != nil {
		t.Errorf("%+v", e.Division)
	}
	e = divide(policy.ModeNever)
	if d := e.Division; d == nil || d.Bypass != "never" || d.Why != "the mode is never" || d.Predicted != nil {
		t.Errorf("%+v", d)
	}
	for range 3 {
		f.TransferFailed(f.Snapshot().Workers()[0], f.Snapshot().Workers()[1], time.Now().UnixNano())
	}
	if e = divide(policy.ModeAlways); e.Division.Bypass != "no_decode" || e.Division.Why == "" {
		t.Errorf("%+v", e.Division)
	}
}

// Engines that refuse whole requests leave nothing to compare, whatever the mode.
func TestAnExplanationSaysThatNoWorkerServesWholeRequests(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	pair(f)
	for _, w := range f.Snapshot().Workers() {
		facts := w.Facts
		facts.Transfer.LegsOnly = true
		f.Put(w.URL, facts)
	}
	_, text := ask(t, a, "POST", "/admin/explain", question)
	var e admin.Explanation
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatal(err)
	}
	if d := e.Division; d == nil || !d.Divided || d.Why != "no worker of the model serves whole requests" || d.Predicted != nil {
		t.Errorf("%+v: %s", d, text)
	}
}

func TestAnExplanationSaysThatAllWorkersOnlyComputePrompts(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	pair(f)
	for _, w := range f.Snapshot().Workers() {
		facts := w.Facts
		facts.Role = fleet.RolePrefill
		f.Put(w.URL, facts)
	}
	if status, text := ask(t, a, "POST", "/admin/explain", question); status != 503 || !strings.Contains(text, "all its workers have the role prefill") {
		t.Errorf("%d: %s", status, text)
	}
}

func TestWorkersShowRolesAndLinks(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	workers := func() (got admin.Workers) {
		t.Helper()
		_, text := ask(t, a, "GET", "/admin/workers", "")
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := workers(); got.Workers[0].Role != "both" || got.Workers[0].Transfer != nil || got.Links != nil {
		t.Errorf("%+v", got)
	}
	pair(f)
	one, two := f.Snapshot().Workers()[0], f.Snapshot().Workers()[1]
	for range 30 {
		f.Transferred(one, two, 1000, 40*time.Millisecond)
	}
	for range 3 {
		f.TransferFailed(two, one, time.Now().UnixNano())
	}
	got := workers()
	if w := got.Workers[0]; w.Role != "prefill" || w.Transfer == nil || w.Transfer.Connector != "nixl" || w.Transfer.Port != 5600 || w.Transfer.KVBytesPerToken != 1<<17 || got.Workers[1].Role != "decode" {
		t.Errorf("%+v", w)
	}
	if len(got.Links) != 2 {
		t.Fatalf("%+v", got.Links)
	}
	if l := got.Links[0]; l.From != one.URL || l.To != two.URL || l.Samples != 30 || l.AloneUntil != nil || l.Failures != 0 || l.BaseMS+1000*l.TokenMS < 30 || l.BaseMS+1000*l.TokenMS > 50 {
		t.Errorf("%+v", l)
	}
	if l := got.Links[1]; l.From != two.URL || l.Failures != 3 || l.AloneUntil == nil || !l.AloneUntil.After(time.Now()) {
		t.Errorf("%+v", l)
	}
	f.Remove(two.ID)
	if got := workers(); got.Links != nil {
		t.Errorf("links of a worker that left: %+v", got.Links)
	}
}

func TestAnExplanationNamesTheWorkerFromWhichTokensAreFetched(t *testing.T) {
	a, f := newAdmin(t, admin.DefaultConfig(), nil)
	pair(f)
	for i := range 2 {
		w := f.Snapshot().Workers()[i]
		facts := w.Facts
		facts.Role, facts.Transfer.Fetches, facts.Transfer.TokenBytes = fleet.RoleBoth, true, 1
		f.Put(w.URL, facts)
	}
	for range 50 {
		f.Transferred(f.Snapshot().Workers()[0], f.Snapshot().Workers()[1], 64, time.Microsecond)
	}
	_, text := ask(t, a, "POST", "/admin/explain", question, "X-Warmpath-Worker", "http://b:1")
	var e admin.Explanation
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatal(err)
	}
	if e.Fetch == nil || e.Fetch.From != "http://a:1" || e.Fetch.Tokens != 64 || e.Fetch.Link.Samples != 50 || !strings.Contains(e.Summary, "fetches 64 tokens from http://a:1") {
		t.Errorf("%+v: %s", e.Fetch, text)
	}
}
