package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/test/testenv"
)

// keeper is an engine that keeps the responses that it made.
type keeper struct {
	url  string
	mu   sync.Mutex
	made map[string]bool
	busy bool // answers 503 to requests for responses
	next int
}

func keeps(t *testing.T, name string) *keeper {
	k := &keeper{made: map[string]bool{}}
	k.url = worker(t, func(w http.ResponseWriter, r *http.Request) {
		k.mu.Lock()
		defer k.mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		var in struct {
			Stream   bool
			Previous string `json:"previous_response_id"`
		}
		_ = json.Unmarshal(body, &in)
		id, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/responses/"), "/")
		missing := !k.made[id]
		if r.URL.Path == "/v1/responses" {
			missing = in.Previous != "" && !k.made[in.Previous]
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case missing:
			w.WriteHeader(404)
			_, _ = io.WriteString(w, `{"error":{"message":"not found","type":"x","code":404}}`)
			return
		case r.URL.Path != "/v1/responses":
			if r.Method == http.MethodDelete {
				delete(k.made, id)
			}
			_, _ = fmt.Fprintf(w, `{"at":%q,"did":"%s %s"}`, name, r.Method, r.RequestURI)
			return
		case k.busy:
			w.WriteHeader(503)
			return
		}
		k.next++
		id = fmt.Sprintf("resp_%s%d", name, k.next)
		k.made[id] = true
		if in.Stream {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":%q,\"object\":\"response\"}}\n\n", id)
			_, _ = fmt.Fprintf(w, "data: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n")
			_, _ = fmt.Fprintf(w, "data: {\"type\":\"response.completed\",\"response\":{\"id\":%q}}\n\n", id)
			return
		}
		_, _ = fmt.Fprintf(w, `{"id":%q,"object":"response","status":"completed","output":[]}`, id)
	})
	return k
}

// call sends a request to a path, and returns its status and answer.
func (f *fixture) call(t *testing.T, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := f.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// make makes a response and returns its id.
func (f *fixture) make(t *testing.T, fields string, headers ...string) string {
	t.Helper()
	status, text := f.call(t, "POST", "/v1/responses", `{"model":"m","input":"hi"`+fields+`}`, headers...)
	_, id, _ := strings.Cut(text, `"id":"`)
	id, _, _ = strings.Cut(id, `"`)
	if status != 200 || id == "" {
		t.Fatalf("%d %s", status, text)
	}
	return id
}

func TestRequestsAboutAResponseGoToTheWorkerThatMadeIt(t *testing.T) {
	workers := []*keeper{keeps(t, "a"), keeps(t, "b"), keeps(t, "c")}
	f := serve(t, nil, workers[0].url, workers[1].url, workers[2].url)
	at := map[byte]bool{}
	for i := range 12 {
		id := f.make(t, fmt.Sprintf(`,"stream":%v`, i%2 == 0))
		at[id[5]] = true
		for _, c := range []struct{ method, path string }{
			{"GET", "/v1/responses/" + id}, {"GET", "/v1/responses/" + id + "?stream=true&starting_after=2"},
			{"GET", "/v1/responses/" + id + "/input_items?limit=5"}, {"POST", "/v1/responses/" + id + "/cancel"},
		} {
			want := fmt.Sprintf(`{"at":"%c","did":"%s %s"}`, id[5], c.method, c.path)
			if status, text := f.call(t, c.method, c.path, ""); status != 200 || text != want {
				t.Errorf("%s %s: %d %s", c.method, c.path, status, text)
			}
		}
		for range 3 { // the next turns follow, and are found as well
			next := f.make(t, fmt.Sprintf(`,"previous_response_id":%q`, id))
			if next[5] != id[5] {
				t.Errorf("%s continues %s", next, id)
			}
			id = next
		}
		if status, _ := f.call(t, "DELETE", "/v1/responses/"+id, ""); status != 200 {
			t.Errorf("delete: %d", status)
		}
		if status, text := f.call(t, "GET", "/v1/responses/"+id, ""); status != 404 || !strings.Contains(text, "response_not_found") {
			t.Errorf("after its deletion: %d %s", status, text)
		}
	}
	if len(at) < 2 {
		t.Errorf("all responses are at %v", at)
	}
	f.idle(t)
	// A request about a response takes the engine no work, so it also reaches a worker that drains or fails its checks.
	id := f.make(t, "")
	for _, w := range f.fleet.Snapshot().Workers() {
		f.fleet.SetDraining(w.ID, true)
		f.fleet.SetHealth(w.ID, false, "slow")
	}
	for _, c := range []struct{ method, path string }{{"GET", "/v1/responses/" + id}, {"POST", "/v1/responses/" + id + "/cancel"}} {
		if status, text := f.call(t, c.method, c.path, ""); status != 200 {
			t.Errorf("%s at a draining worker: %d %s", c.method, status, text)
		}
	}
}

// The worker that was tried first did not make the response.
func TestAResponseIsFoundAtTheWorkerThatAnsweredAfterARetry(t *testing.T) {
	workers := []*keeper{keeps(t, "a"), keeps(t, "b")}
	workers[0].busy = true
	f := serve(t, nil, workers[0].url, workers[1].url)
	for range 4 {
		id := f.make(t, "")
		if status, text := f.call(t, "GET", "/v1/responses/"+id, ""); status != 200 || !strings.Contains(text, `"at":"b"`) {
			t.Errorf("%d %s", status, text)
		}
	}
}

func TestAnUnknownOrLostResponseIsRefusedInOpenAIsShape(t *testing.T) {
	a, b := keeps(t, "a"), keeps(t, "b")
	f := serve(t, nil, a.url, b.url)
	refused := func(method, path, body, code string, headers ...string) {
		t.Helper()
		status, text := f.call(t, method, path, body, headers...)
		if status != 404 && code != "method_not_allowed" || !strings.Contains(text, `"code":"`+code+`"`) {
			t.Errorf("%s %s: %d %s, want %s", method, path, status, text, code)
		}
		checkErrorShape(t, path, text)
	}
	continued := func(id string) string {
		return fmt.Sprintf(`{"model":"m","input":"hi","previous_response_id":%q}`, id)
	}
	for _, path := range []string{"/v1/responses/resp_0", "/v1/responses/resp_0/input_items", "/v1/responses/" + strings.Repeat("x", 5000)} {
		refused("GET", path, "", "response_not_found")
	}
	refused("POST", "/v1/responses/resp_0/cancel", "", "response_not_found")
	refused("POST", "/v1/responses", continued("resp_0"), "response_not_found")
	refused("GET", "/v1/responses/resp_0/more", "", "unknown_url")
	refused("GET", "/v1/responses/resp_0/../../sleep", "", "unknown_url")
	refused("POST", "/v1/responses/resp_0", "", "method_not_allowed")
	refused("DELETE", "/v1/responses/resp_0/cancel", "", "method_not_allowed")

	id := f.make(t, "", "Authorization", "Bearer one")
	refused("GET", "/v1/responses/"+id, "", "response_not_found", "Authorization", "Bearer two")
	refused("POST", "/v1/responses", continued(id), "response_not_found", "Authorization", "Bearer two")
	if status, text := f.call(t, "GET", "/v1/responses/"+id, "", "Authorization", "Bearer one"); status != 200 {
		t.Errorf("%d %s", status, text)
	}

	id = f.make(t, "")
	gone := map[byte]*keeper{'a': a, 'b': b}[id[5]]
	f.fleet.Remove(f.fleet.Put(gone.url, fleet.Facts{}))
	f.fleet.Put(gone.url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m", MaxModelLen: 4096}}})
	refused("GET", "/v1/responses/"+id, "", "response_lost")
	refused("POST", "/v1/responses", continued(id), "response_lost")

	id = f.make(t, "")
	restarted := f.fleet.Snapshot().Workers()[0]
	if restarted.URL != map[byte]*keeper{'a': a, 'b': b}[id[5]].url {
		restarted = f.fleet.Snapshot().Workers()[1]
	}
	f.fleet.Refused(restarted.ID)
	f.fleet.Answered(restarted.ID, fleet.Signs{}) // another process, which knows no response
	refused("GET", "/v1/responses/"+id, "", "response_lost")
	refused("POST", "/v1/responses", continued(id), "response_lost")
}

// After a restart the router knows no response, but with one worker there is no question where a response is.
func TestTheOnlyWorkerIsAskedForAnUnknownResponse(t *testing.T) {
	a := keeps(t, "a")
	a.made["resp_old"] = true
	f := serve(t, nil, a.url)
	if status, text := f.call(t, "GET", "/v1/responses/resp_old", ""); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if next := f.make(t, `,"previous_response_id":"resp_old"`); next != "resp_a1" {
		t.Error(next)
	}
	if status, text := f.call(t, "GET", "/v1/responses/resp_other", ""); status != 404 || strings.Contains(text, "response_not_found") {
		t.Errorf("the engine's own answer is not passed on: %d %s", status, text)
	}
}

func TestRememberedResponsesAreBoundedInNumberAndTime(t *testing.T) {
	var r gateway.MadeResponses
	now := time.Now()
	for i := range gateway.MostResponses + 1000 {
		r.Add("a", fmt.Sprint(i), now)
	}
	if n := r.Len(); n != gateway.MostResponses || r.Has("a", "999", now) || !r.Has("a", "1000", now) {
		t.Errorf("%d are remembered, the oldest %v, the next %v", n, r.Has("a", "999", now), r.Has("a", "1000", now))
	}
	now = now.Add(gateway.KeptFor + time.Second)
	if r.Has("a", "2000", now) {
		t.Error("a response is remembered for too long")
	}
	r.Add("a", "new", now)
	if n := r.Len(); n != 1 {
		t.Errorf("%d are remembered after all but one are too old", n)
	}
	for range 3 {
		r.Add("a", "again", now)
		now = now.Add(gateway.KeptFor / 2)
	}
	r.Add("a", "last", now)
	if !r.Has("a", "again", now) || r.Len() != 2 {
		t.Errorf("a response that was made again is forgotten with its first one: %d", r.Len())
	}
}

// A flood of one tenant takes the places of its own responses, and not those of other tenants.
func TestATenantWithManyResponsesPushesOutItsOwn(t *testing.T) {
	var r gateway.MadeResponses
	now := time.Now()
	id := func(tenant string, i int) string { return fmt.Sprint(tenant, "-", i) }
	r.Add("few", id("few", 0), now)
	for i := range 2 * gateway.MostResponses {
		r.Add("flood", id("flood", i), now)
		if i%1000 == 0 {
			r.Add("steady", id("steady", i), now)
		}
	}
	if n := r.Len(); n != gateway.MostResponses || !r.Has("few", "few-0", now) {
		t.Errorf("%d are remembered, the only one of a tenant: %v", n, r.Has("few", "few-0", now))
	}
	for i := 0; i < 2*gateway.MostResponses; i += 1000 {
		if !r.Has("steady", id("steady", i), now) {
			t.Errorf("response %d of another tenant is forgotten", i)
		}
	}
	if last := 2*gateway.MostResponses - 1; !r.Has("flood", id("flood", last), now) || r.Has("flood", id("flood", 0), now) {
		t.Error("the flood does not push out its own oldest responses")
	}
	for i := range gateway.MostResponses {
		r.Add(fmt.Sprint("tenant", i), fmt.Sprint("one-", i), now)
	}
	if n := r.Len(); n != gateway.MostResponses || r.Tenants() > gateway.MostResponses {
		t.Errorf("%d responses of %d tenants are remembered", n, r.Tenants())
	}
	for i := range 10 { // all tenants have one response: the oldest ones make room
		r.Add(fmt.Sprint("later", i), fmt.Sprint("later-", i), now)
	}
	for i := range 10 {
		if !r.Has(fmt.Sprint("later", i), fmt.Sprint("later-", i), now) || r.Has(fmt.Sprint("tenant", i), fmt.Sprint("one-", i), now) {
			t.Errorf("response %d of tenants with one response each does not take the place of the oldest", i)
		}
	}
	r.Add("last", "last-0", now.Add(gateway.KeptFor+time.Second))
	if r.Len() != 1 || r.Tenants() != 1 {
		t.Errorf("%d responses of %d tenants after all but one are too old", r.Len(), r.Tenants())
	}
	r.Remove("last-0")
	r.Remove("last-0")
	if r.Len() != 0 || r.Tenants() != 0 {
		t.Errorf("%d responses of %d tenants after the last was removed", r.Len(), r.Tenants())
	}
}

// If the engine calls tools, it generates several times for one response. max_output_tokens limits each time, so the
// whole answer may be longer, and the prompts and their cached tokens are those of all times.
func TestToolsOfTheEngineMakeAnswersLongerThanTheirLimit(t *testing.T) {
	registry, change := withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("key-a"), TokensPerMinute: 100_000})
	engine := worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"resp_1","object":"response","status":"completed","output":[],"usage":{"input_tokens":900,"output_tokens":120,"input_tokens_details":{"cached_tokens":600}}}`)
	})
	f := serve(t, func(s *settings) {
		change(s)
		s.facts.ReportsCachedTokens, s.local = true, fortyZeros{}
	}, engine)
	booked := uint64(0)
	for i, c := range []struct {
		tools  string
		output uint64 // the tokens that the tenant is charged for
	}{
		{`[{"type":"web_search_preview"}]`, 120}, {`[{"type":"function","name":"f"},{"type":"code_interpreter","container":{"type":"auto"}}]`, 120},
		{`[{"type":"function","name":"f","parameters":{"type":"object"}}]`, 50}, {`[]`, 50},
	} {
		f.make(t, `,"max_output_tokens":50,"tools":`+c.tools, "X-Api-Key", "key-a")
		booked += c.output
		testenv.Until(t, "the request has ended", func() bool { return registry.ByName("a").Counts().Active == 0 })
		if got := registry.ByName("a").Counts().Output; got != booked {
			t.Errorf("%s: %d tokens in all are booked, want %d", c.tools, got, booked)
			booked = got
		}
		if rec := f.last(t, i+1); (rec.ReportedTokens == nil) != (c.output == 120) {
			t.Errorf("%s: the cached tokens are compared: %v", c.tools, rec.ReportedTokens != nil)
		}
	}
	f.idle(t)
}

func TestATargetAndAChosenIDGiveNoAccessToAnotherTenantsResponse(t *testing.T) {
	engine := keeps(t, "a")
	_, change := withTenants(tenant.Config{Name: "owner", KeysSHA256: hashed("key-o")}, tenant.Config{Name: "other", KeysSHA256: hashed("key-x")})
	f := serve(t, change, engine.url, keeps(t, "b").url)
	id := f.make(t, "", "X-Api-Key", "key-o", "X-Warmpath-Target", engine.url)
	next := `{"model":"m","input":"hi","previous_response_id":"` + id + `"}`
	if status, text := f.call(t, "POST", "/v1/responses", next, "X-Api-Key", "key-x", "X-Warmpath-Target", engine.url); status != 404 || !strings.Contains(text, "response_not_found") {
		t.Errorf("another tenant continues the response: %d %s", status, text)
	}
	if status, text := f.call(t, "POST", "/v1/responses", next, "X-Api-Key", "key-o", "X-Warmpath-Target", engine.url); status != 200 {
		t.Errorf("the owner cannot continue the response: %d %s", status, text)
	}
	// The engine gives the other tenant's response the same id, as vLLM does for the same request_id.
	engine.mu.Lock()
	engine.next = 0
	engine.mu.Unlock()
	if same := f.make(t, "", "X-Api-Key", "key-x", "X-Warmpath-Target", engine.url); same != id {
		t.Fatalf("id %s, want %s", same, id)
	}
	for key, want := range map[string]int{"key-o": 200, "key-x": 404} {
		if status, text := f.call(t, "GET", "/v1/responses/"+id, "", "X-Api-Key", key); status != want {
			t.Errorf("%s: %d %s, want %d", key, status, text, want)
		}
	}
}
