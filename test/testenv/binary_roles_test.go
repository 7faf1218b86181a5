package testenv_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// roleState has the fields of /admin/workers about roles.
type roleState struct {
	Role     string `json:"role"`
	Draining bool   `json:"draining"`
	Requests int64  // under way
	Cached   int64  // blocks that the index expects there
}

// roleOf returns what the gateway says about the worker at url.
func roleOf(t *testing.T, g *testenv.Gateway, url string) (s roleState) {
	t.Helper()
	var out struct {
		Workers []struct {
			roleState
			URL     string `json:"url"`
			Holders []struct {
				Load struct {
					Requests int64 `json:"requests"`
				} `json:"load"`
				Blocks int64 `json:"index_blocks"`
			} `json:"holders"`
		} `json:"workers"`
	}
	testenv.JSON(t, g.Admin+"/admin/workers", &out)
	for _, w := range out.Workers {
		if w.URL != url {
			continue
		}
		s = w.roleState
		for _, h := range w.Holders {
			s.Requests += h.Load.Requests
			s.Cached += h.Blocks
		}
	}
	return s
}

// switching returns mock SGLang engines that can change their roles, and a gateway in front of them.
func switching(t *testing.T, prefill, decode int, args ...string) (*mockFleet, []*mockengine.Server) {
	t.Helper()
	var all []*mockengine.Server
	for i := range prefill + decode {
		all = append(all, mock(t, func(c *mockengine.Config) {
			c.Kind, c.Speed, c.OutputTokens = mockengine.SGLang, 20, 40
			c.Transfer.Connector, c.Transfer.Role, c.Transfer.SwitchRoles = mockengine.Rooms, mockengine.Prefill, true
			if i >= prefill {
				c.Transfer.Role = mockengine.Decode
			}
		}))
	}
	return serve(t, all, args...), all
}

// changeRole asks the admin API, and returns the status and the answer.
func changeRole(t *testing.T, g *testenv.Gateway, query, body string) (int, string) {
	t.Helper()
	return testenv.Post(t, g.Admin+"/admin/workers/role"+query, body)
}

func TestARoleChangesUnderLoadAndFailsNoRequest(t *testing.T) {
	// With learned times a worker that a busy machine made slow once may get no request in the time of this test.
	f, engines := switching(t, 2, 2, "--policy", "least_load")
	f.chat(t, []message{{"user", prose("a long prompt", 600)}}, "")
	url, cached := "", int64(0)
	testenv.Until(t, "the index has the long prompt at a prefill worker", func() bool {
		for _, e := range engines[:2] {
			if s := roleOf(t, f.Gateway, e.URL()); s.Role == "prefill" && s.Cached > 20 {
				url, cached = e.URL(), s.Cached
			}
		}
		return url != ""
	})
	l := closedLoop(f.URL, 8, `"stream":true`, "[DONE]")
	defer l.stop()
	l.rate(40)
	for _, step := range []struct{ role, other string }{{"decode", "prefill"}, {"prefill", "decode"}} {
		status, text := changeRole(t, f.Gateway, "", fmt.Sprintf(`{"url":%q,"role":%q}`, url, step.role))
		var out struct {
			Changed bool
			Before  string
			Engine  string
		}
		if err := json.Unmarshal([]byte(text), &out); err != nil || status != http.StatusOK || !out.Changed || out.Before != step.other || !strings.Contains(out.Engine, `"success":true`) {
			t.Fatalf("%d: %s", status, text)
		}
		if s := roleOf(t, f.Gateway, url); s.Role != step.role || s.Draining {
			t.Errorf("after: %+v", s)
		}
		if s := roleOf(t, f.Gateway, url); s.Cached > cached/2 { // the other prompts are shorter than two blocks
			t.Errorf("the index still has %d of %d blocks", s.Cached, cached)
		}
		before, answered := f.asked(t, url), l.answers()
		testenv.WaitFor(t, 20*time.Second, "requests with the new role", func() error {
			if n := f.asked(t, url) - before; n < 5 {
				return fmt.Errorf("%d requests since the change, and %d answers of all workers", n, l.answers()-answered)
			}
			return nil
		})
		// The last records name the worker in its new role.
		var recent struct {
			Decisions []struct {
				Worker  string `json:"worker"`
				Prefill string `json:"prefill_worker"`
			} `json:"decisions"`
		}
		testenv.WaitFor(t, 20*time.Second, "a record with the new role", func() error {
			testenv.JSON(t, f.Admin+"/admin/decisions?limit=20", &recent)
			for _, d := range recent.Decisions {
				if step.role == "decode" && d.Worker == url || step.role == "prefill" && d.Prefill == url {
					return nil
				}
			}
			return fmt.Errorf("none of %d", len(recent.Decisions))
		})
	}
	l.stop()
	if l.failed > 0 || l.served == 0 {
		t.Errorf("%d requests failed, %d were served", l.failed, l.served)
	}
}

func TestRoleChangesThatAreRefusedChangeNothing(t *testing.T) {
	f, engines := switching(t, 1, 2)
	prefill, decode := engines[0].URL(), engines[1].URL()
	for _, c := range []struct {
		name, body string
		status     int
		says       string
	}{
		{"the last prefill worker", fmt.Sprintf(`{"url":%q,"role":"decode"}`, prefill), 409, "would compute prompts"},
		{"a role that SGLang does not have", fmt.Sprintf(`{"url":%q,"role":"both"}`, decode), 409, "prefill and decode only"},
		{"an unknown role", fmt.Sprintf(`{"url":%q,"role":"boss"}`, decode), 400, "none of prefill, decode, both"},
		{"an unknown worker", `{"url":"http://127.0.0.1:1","role":"decode"}`, 404, "GET /admin/workers lists them"},
		{"a drain that is no duration", fmt.Sprintf(`{"url":%q,"role":"prefill","drain":"soon"}`, decode), 400, "not a duration"},
	} {
		if status, text := changeRole(t, f.Gateway, "", c.body); status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %s", c.name, status, text)
		}
	}
	// One of two decode workers may become a prefill worker; then the last decode worker may not.
	if status, text := changeRole(t, f.Gateway, "", fmt.Sprintf(`{"url":%q,"role":"prefill"}`, decode)); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	if status, text := changeRole(t, f.Gateway, "", fmt.Sprintf(`{"url":%q,"role":"prefill"}`, engines[2].URL())); status != http.StatusConflict || !strings.Contains(text, "would generate answers") {
		t.Errorf("the last decode worker: %d %s", status, text)
	}
	if a := f.chat(t, []message{{"user", "are you there?"}}, ""); a.text == "" {
		t.Error("no answer after the changes")
	}
}

// A worker whose requests do not end in time keeps its role, and gets requests again; a second order waits for none.
func TestARoleChangeWhoseDrainIsTooShortIsUndone(t *testing.T) {
	f, engines := switching(t, 2, 1)
	url := engines[0].URL()
	l := closedLoop(f.URL, 6, `"max_tokens":2000`, "choices")
	defer l.stop()
	testenv.Until(t, "the worker has requests", func() bool { return roleOf(t, f.Gateway, url).Requests > 0 })
	type said struct {
		status int
		text   string
	}
	first := make(chan said, 1)
	go func() { // ends with the answer
		status, text := changeRole(t, f.Gateway, "", fmt.Sprintf(`{"url":%q,"role":"decode","drain":"600ms"}`, url))
		first <- said{status, text}
	}()
	testenv.Until(t, "the worker drains", func() bool { return roleOf(t, f.Gateway, url).Draining })
	if status, text := changeRole(t, f.Gateway, "", fmt.Sprintf(`{"url":%q,"role":"decode"}`, url)); status != http.StatusConflict || !strings.Contains(text, "is being changed") {
		t.Errorf("a second order: %d %s", status, text)
	}
	if a := <-first; a.status != http.StatusConflict || !strings.Contains(a.text, "still has requests after 600ms") {
		t.Errorf("%d %s", a.status, a.text)
	}
	if s := roleOf(t, f.Gateway, url); s.Draining || s.Role != "prefill" {
		t.Errorf("%+v", s)
	}
}

// The prediction is the simulator's, for the fleet as it is and as it would be. It changes nothing.
func TestARoleChangeIsPredictedInTheLaboratory(t *testing.T) {
	f, engines := switching(t, 2, 2)
	for i := range 60 {
		f.chat(t, []message{{"user", prose(fmt.Sprintf("topic %d", i%6), 600)}}, "")
	}
	type figures struct {
		HitRate    float64 `json:"hit_rate"`
		FirstToken float64 `json:"first_token_ms"`
		PerToken   float64 `json:"per_token_ms"`
		Answered   int     `json:"answered"`
		Divided    int     `json:"divided"`
		Levels     []struct {
			Level string  `json:"level"`
			Share float64 `json:"share"`
		} `json:"levels"`
	}
	var out struct {
		Changed    bool
		Prediction struct {
			HitRate    float64 `json:"hit_rate"`
			After      float64 `json:"hit_rate_after"`
			Laboratory struct {
				Requests      int
				Before, After figures
				Error         string
			}
		}
	}
	url := engines[0].URL()
	for _, role := range []string{"decode", "prefill"} {
		status, text := changeRole(t, f.Gateway, "?predict=1", fmt.Sprintf(`{"url":%q,"role":%q}`, url, role))
		if err := json.Unmarshal([]byte(text), &out); err != nil || status != http.StatusOK || out.Changed {
			t.Fatalf("%d %v: %s", status, err, text)
		}
		lab := &out.Prediction.Laboratory
		for _, x := range []figures{lab.Before, lab.After} {
			// Six topics of 600 words: with whole caches all but the first request of a topic at a worker are hits.
			if x.Answered != 60 || x.Divided != 60 || x.HitRate < 0.5 || x.FirstToken <= 0 || x.PerToken <= 0 || len(x.Levels) != 2 {
				t.Errorf("%s: %+v: %s", role, x, text)
			}
		}
		if lab.Requests != 60 || (role == "prefill") != (fmt.Sprint(lab.Before) == fmt.Sprint(lab.After)) {
			t.Errorf("%s: %s", role, text)
		}
	}
	if s := roleOf(t, f.Gateway, url); s.Role != "prefill" || s.Draining {
		t.Errorf("a prediction changed the worker: %+v", s)
	}
}
