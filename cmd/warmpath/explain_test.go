package main

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/telemetry"
)

func TestExplanationsArePrintedAsTables(t *testing.T) {
	kv := &admin.Explanation{
		Base: "m", Policy: "kv_aware", Branch: "fallback", Reason: "next best", Worker: "http://b:1", Trust: "exact",
		TokenSource: "cache", TokenOrigin: "the ids are remembered. The engines are asked; what to do: name the files", TokenWaitMS: 0.25, PromptTokens: 4000, TokensKnown: true, MatchTokens: 64, PredictedTokens: 80,
		Best:  &admin.Best{Worker: "http://a:1", PredictedTokens: 2048, WhyNot: "saturated"},
		Terms: []string{"match", "load"}, SessionSource: "x-session-id", ServiceLevels: []string{"5s/100ms", "2s"}, Queued: true,
		Candidates: []admin.Candidate{
			{Worker: "http://b:1", Chosen: true, MatchTokens: 64, Tiers: map[string]int{"gpu": 48, "cpu": 16}, PredictedTokens: 80, UncachedTokens: 3920,
				Trust: "exact", Pace: fleet.Pace{Factor: 1.25, Believed: true}, Load: admin.Load{Requests: 2, PrefillTokens: 900, BacklogMS: 12.3456}, Score: 0.0155, Terms: map[string]float64{"match": 0.016, "load": -0.0005}, Why: "next best"},
			{Worker: "http://a:1", Rank: 1, MatchTokens: 2048, Tiers: map[string]int{}, PredictedTokens: 2000, AtRiskTokens: 48, UncachedTokens: 2000, Trust: "degraded",
				Pace: fleet.Pace{Factor: 1}, LeftOut: "saturated", Why: "saturated"},
		},
	}
	none := &admin.Explanation{Base: "m", LoRA: "sql", AskedModel: "sql-4", Policy: "least_load", Branch: "none", Reason: "no worker can be used", Error: "no worker",
		TokenSource: "timeout", TokenOrigin: "no answer came. The engines are asked; what to do: name the files", PromptTokens: 1000}
	var out bytes.Buffer
	if err := writeExplanations(&out, &admin.Explanations{Policies: []*admin.Explanation{kv, none}}); err != nil {
		t.Fatal(err)
	}
	want := `kv_aware chooses http://b:1 rank 0: fallback (next best)
  model m, 4000 prompt tokens (cache, 0.2 ms), 64 matched, 80 predicted, trust of the match exact
  the ids are remembered. The engines are asked; what to do: name the files
  session from x-session-id
  service levels 5s/100ms, 2s
  best match not taken: http://a:1 rank 0 has 2048 tokens, saturated
  it would wait for a worker first: all are saturated, or others wait
   WORKER      RANK  MATCH   TIERS           PREDICTED  AT RISK  UNCACHED  CACHE TRUST  REQUESTS  PREFILL  BACKLOG  PACE   match  load     SCORE   WHY
                     tokens  tokens          tokens     tokens   tokens                 count     tokens   ms       ratio
*  http://b:1  0     64      gpu 48, cpu 16  80         0        3920      exact        2         900      12.35    1.25   0.016  -0.0005  0.0155  next best
   http://a:1  1     2048    -               2000       48       2000      degraded     0         0        0        1      -      -        -       saturated

least_load chooses nobody: none (no worker can be used)
  no worker
  model m with adapter sql in place of sql-4, about 1000 prompt tokens (timeout), 0 matched, 0 predicted
  no answer came
  service levels none
   WORKER  RANK  MATCH   TIERS   PREDICTED  AT RISK  UNCACHED  CACHE TRUST  REQUESTS  PREFILL  BACKLOG  PACE   SCORE  WHY
                 tokens  tokens  tokens     tokens   tokens                 count     tokens   ms       ratio

Columns: docs/api.md, "The table". Columns in small letters are parts of the score: docs/policies/
They differ: kv_aware: http://b:1 rank 0, least_load: nobody.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestAnExplanationPrintsBothLegs(t *testing.T) {
	link := &admin.Link{From: "http://p:1", To: "http://d:1", BaseMS: 10, TokenMS: 0.0105, Samples: 12}
	divided := &admin.Explanation{Base: "m", Policy: "marginal", Branch: "miss", Reason: "no match", Worker: "http://d:1", Trust: "exact", TokenSource: "local", TokensKnown: true, PromptTokens: 4000,
		Division: &admin.Division{Divided: true, Why: "it costs less", TransferTokens: 4000, Link: link,
			Predicted: &telemetry.Division{WholeMS: 900, PrefillMS: 400, DecodeMS: 100, TransferMS: 52}},
		Prefill: &admin.Leg{Policy: "marginal", Branch: "affinity", Reason: "the highest score", Worker: "http://p:1", MatchTokens: 64, PredictedTokens: 80,
			Candidates: []admin.Candidate{{Worker: "http://p:1", Chosen: true, Trust: "exact", Why: "chosen"}}},
		Candidates: []admin.Candidate{{Worker: "http://d:1", Chosen: true, Trust: "exact", FetchedTokens: 4000, FetchedFrom: "http://p:1", TransferMS: 52, Why: "chosen"}},
	}
	whole := &admin.Explanation{Base: "m", Policy: "marginal", Worker: "http://d:1", Division: &admin.Division{Bypass: "short", Why: "too few tokens"},
		Fetch: &admin.Fetch{From: "http://p:1", Tokens: 64, MS: 10.5, Link: &admin.Link{BaseMS: 10, TokenMS: 0.01}}}
	var out bytes.Buffer
	if err := writeExplanations(&out, &admin.Explanations{Agree: true, Policies: []*admin.Explanation{divided, whole}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"  two workers: it costs less\n",
		"  predicted cost: 900 ms at one worker; 500 ms at two: prefill 400 ms, decode 100 ms with 52 ms of transfer\n",
		"  transfer: 4000 tokens from http://p:1 to http://d:1 (10 ms + 0.0105 ms for each token, from 12 measured transfers)\n",
		"\nprefill leg: marginal chooses http://p:1 rank 0: affinity (the highest score); 64 matched, 80 predicted\n",
		"\ndecode leg: the worker that generates the answer\n",
		"FETCHED  TRANSFER", "4000     52",
		"  one worker: too few tokens (short)\n",
		"  fetches 64 tokens from http://p:1 in 10.5 ms (10 ms + 0.01 ms for each token, of other pairs, or assumed)\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

func TestAnEstimateDoesNotHaveTheTrustOfTheCache(t *testing.T) {
	var out bytes.Buffer
	e := &admin.Explanation{Base: "m", Policy: "estimated", Branch: "affinity", Reason: "the highest score", Worker: "http://a:1", Trust: "approximate",
		TokenSource: "local", TokensKnown: true, Candidates: []admin.Candidate{{Worker: "http://a:1", Chosen: true, Trust: "exact"}}}
	if err := writeExplanations(&out, &admin.Explanations{Policies: []*admin.Explanation{e}}); err != nil {
		t.Fatal(err)
	}
	if want := "trust of the match approximate (an estimate from what was sent before; trust of the worker's cache exact)\n"; !strings.Contains(out.String(), want) {
		t.Errorf("want %q:\n%s", want, out.String())
	}
}

// Under a policy that follows what was sent before, the worker that cannot be used may have no match in the index.
func TestAFallbackWithoutABestMatchNamesTheWorkersThatCannotBeUsed(t *testing.T) {
	var out bytes.Buffer
	e := &admin.Explanation{Base: "m", Policy: "cache_aware", Branch: "fallback", Reason: "the next longest", Worker: "http://a:1",
		Candidates: []admin.Candidate{{Worker: "http://a:1", Chosen: true}, {Worker: "http://b:1", Rank: 2, LeftOut: "unavailable", Why: "unavailable: no answer"}}}
	if err := writeExplanations(&out, &admin.Explanations{Policies: []*admin.Explanation{e}}); err != nil {
		t.Fatal(err)
	}
	if want := "  cannot be used: http://b:1 rank 2, unavailable: no answer\n"; !strings.Contains(out.String(), want) {
		t.Errorf("want %q:\n%s", want, out.String())
	}
}

func TestExplainSaysWhatToDoWhenItCannotAsk(t *testing.T) {
	t.Setenv(config.EnvAdminKey, "a-secret-key")
	var got *http.Request
	status, answer := 200, `{"policy":"kv_aware","worker":"http://a:1","candidates":[]}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	refusing := httptest.NewServer(http.NotFoundHandler())
	refusing.Close()
	run := func(body string, args ...string) (string, error) {
		c := newExplain()
		c.SetArgs(append([]string{"--admin", s.URL}, args...))
		c.SetIn(strings.NewReader(body))
		var out bytes.Buffer
		c.SetOut(&out)
		c.SetErr(io.Discard)
		c.SilenceErrors, c.SilenceUsage = true, true
		err := c.Execute()
		return out.String(), err
	}
	if out, err := run(`{"model":"m"}`, "--policy", "a,b", "-H", "X-Session-ID: s", "--json"); err != nil || out != answer {
		t.Errorf("%v %s", err, out)
	}
	if got.URL.Query().Get("policy") != "a,b" || got.Header.Get("X-Session-ID") != "s" || got.Header.Get("Authorization") != "Bearer a-secret-key" {
		t.Errorf("asked %s with %v", got.URL, got.Header)
	}
	encrypted := httptest.NewUnstartedServer(http.NotFoundHandler())
	encrypted.Config.ErrorLog = log.New(io.Discard, "", 0)
	encrypted.StartTLS()
	defer encrypted.Close()
	for _, c := range []struct {
		status       int
		answer, want string
		body         string
		args         []string
	}{
		{401, `{}`, "refuses the key in WARMPATH_ADMIN_KEY", "{}", nil},
		{404, `{"error":{"message":"there is no POST","code":"unknown_url"}}`, "--admin-listen", "{}", nil},
		{404, `{"error":{"message":"the model \"x\" is served by no worker"}}`, `the model "x"`, "{}", nil},
		{400, `{"error":{"message":"policy: \"best\" is none of kv_aware"}}`, "none of kv_aware", "{}", nil},
		{502, `<html>`, "not a Warmpath admin listener", "{}", nil},
		{200, `<html>`, "read the answer", "{}", nil},
		{200, ``, "no request on standard input", " \n", nil},
		{200, ``, "http://127.0.0.1:9090", "{}", []string{"--admin", "127.0.0.1:9090"}},
		{200, ``, "nothing listens at", "{}", []string{"--admin", refusing.URL}},
		{200, ``, "variable SSL_CERT_FILE", "{}", []string{"--admin", encrypted.URL}},
		{200, ``, "speaks TLS: write --admin " + encrypted.URL, "{}", []string{"--admin", strings.Replace(encrypted.URL, "https", "http", 1)}},
		{200, ``, "NAME: VALUE", "{}", []string{"-H", "x"}},
	} {
		status, answer = c.status, c.answer
		if out, err := run(c.body, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d %s: %v, want %q\n%s", c.status, c.answer, err, c.want, out)
		}
	}
	for _, one := range []string{"", `"queued":true,`} { // a request that would wait is not a failure
		status, answer = 200, `{"policy":"kv_aware",`+one+`"candidates":[]}`
		for _, args := range [][]string{nil, {"--json"}} {
			if out, err := run("{}", args...); errors.Is(err, errNoCandidate) == (one != "") || !strings.Contains(out, "kv_aware") {
				t.Errorf("%s %v: %v\n%s", answer, args, err, out)
			}
		}
	}
	status, answer = 200, `{"branch":"none","reason":"not loaded","candidates":[{"worker":"http://a:1"}]}`
	if out, err := run("{}"); !errors.Is(err, errNoChoice) || !strings.HasPrefix(out, "the router chooses nobody") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Setenv(config.EnvAdminKey, "")
	status, answer = 401, `{}`
	if _, err := run("{}"); err == nil || !strings.Contains(err.Error(), "needs the admin key: set WARMPATH_ADMIN_KEY") {
		t.Errorf("without a key: %v", err)
	}
}

func TestAMockEngineOnAUsedPortSaysHowToChooseAnother(t *testing.T) {
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = used.Close() }()
	for _, address := range []struct{ flag, at string }{{"--listen", ""}, {"--events", "tcp://"}, {"--replay", "tcp://"}} {
		c := newMock()
		c.SetArgs([]string{"--listen", "127.0.0.1:0", address.flag, address.at + used.Addr().String()})
		c.SetOut(io.Discard)
		c.SilenceErrors, c.SilenceUsage = true, true
		err := c.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), used.Addr().String()) || !strings.HasSuffix(err.Error(), "; choose another address with "+address.flag) {
			t.Errorf("%s: %v", address.flag, err)
		}
	}
}
