package app_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/publish"
	"github.com/warmpath/warmpath/test/testenv"
)

// indexService is a process as `warmpath index` makes it.
type indexService struct {
	*router
	front, grpc string       // the addresses for HTTP and gRPC
	http2       *http.Client // speaks HTTP/2 without TLS
}

// startIndex runs an index service without a list of workers until the test ends.
func startIndex(t *testing.T, change func(*config.Config), logs ...io.Writer) *indexService {
	t.Helper()
	cfg := settings()
	cfg.Admin.Listen = ""
	cfg.IndexService.Listen, cfg.IndexService.GRPCListen = "127.0.0.1:0", "127.0.0.1:0"
	if change != nil {
		change(cfg)
	}
	r := build(t, cfg, app.Options{Log: slog.New(slog.NewTextHandler(io.MultiWriter(logs...), nil)), IndexOnly: true})
	r.run()
	front, rpc := r.IndexAddrs()
	r.url = "http://" + front.String()
	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(h2.CloseIdleConnections)
	return &indexService{router: r, front: front.String(), grpc: rpc.String(), http2: &http.Client{Transport: h2}}
}

// call sends a JSON body and reads a JSON answer into out, which may be nil. It returns the status and the text.
func (s *indexService) call(method, path, body string, out any) (int, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && out != nil && resp.StatusCode/100 == 2 {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		s.t.Fatalf("%s %s: %d %s: %v", path, body, resp.StatusCode, text, err)
	}
	return resp.StatusCode, string(text)
}

// must fails the test unless the answer has the status.
func (s *indexService) must(status int, method, path, body string, out any) string {
	s.t.Helper()
	got, text := s.call(method, path, body, out)
	if got != status {
		s.t.Fatalf("%s %s: %d %s, want %d", path, body, got, text, status)
	}
	return text
}

// publisher runs the publisher of a rank until the test ends.
func publisher(t *testing.T, rank int) *publish.KVPublisher {
	t.Helper()
	p := publish.New(publish.Config{Endpoint: "tcp://127.0.0.1:*", Replay: "tcp://127.0.0.1:*", BlockSize: 16, Rank: rank, Topic: "kv-events"})
	if err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	running(t, p.Run)
	return p
}

// stores publishes the blocks of the first tokens of a prompt.
func stores(t *testing.T, p *publish.KVPublisher, tokens []block.Token, size int, lora, salt string) {
	t.Helper()
	hashes, err := publish.HashBlocks(tokens, size, nil, lora, salt)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.PublishStored(publish.Stored{TokenIDs: tokens, BlockSize: size, BlockDigests: hashes, LoRAName: lora, CacheSalt: salt}); err != nil {
		t.Fatal(err)
	}
}

func ids(from, n int) []block.Token {
	out := make([]block.Token, n)
	for i := range out {
		out[i] = block.Token(from + i)
	}
	return out
}

func text(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// dynamoAnswer is the answer of Dynamo's standalone indexer, in tokens.
type dynamoAnswer struct {
	Scores      map[string]map[string]int `json:"scores"`
	Frequencies []int                     `json:"frequencies"`
	Instances   map[string]struct {
		Longest int            `json:"longest_matched"`
		GPU     int            `json:"gpu"`
		DP      map[string]int `json:"dp"`
		CPU     int            `json:"cpu"`
		Disk    int            `json:"disk"`
	} `json:"instances"`
}

// The client calls what a client of Dynamo's standalone indexer calls, with the fields that it sends: numbers as ids, a
// call for each rank, and an indexer for each model and routing group.
func TestAClientOfDynamosIndexerIsServed(t *testing.T) {
	s := startIndex(t, nil)
	p := map[string]*publish.KVPublisher{}
	for _, rank := range []string{"7/0", "7/1", "7/2", "8/0"} {
		p[rank] = publisher(t, int(rank[2]-'0'))
		s.must(http.StatusCreated, "POST", "/register", fmt.Sprintf(`{"instance_id":%s,"endpoint":%q,"model_name":"m","routing_group":"default","block_size":16,"dp_rank":%s,"replay_endpoint":%q}`,
			rank[:1], p[rank].Endpoint(), rank[2:], p[rank].ReplayEndpoint()), nil)
	}
	// Another pool has an instance with the same number: it is another worker.
	other := publisher(t, 0)
	s.must(http.StatusCreated, "POST", "/register", fmt.Sprintf(`{"instance_id":7,"endpoint":%q,"model_name":"m","routing_group":"batch","block_size":16,"replay_endpoint":%q}`, other.Endpoint(), other.ReplayEndpoint()), nil)
	prompt := ids(1, 161)
	stores(t, p["7/0"], prompt[:32], 16, "", "")
	stores(t, p["7/1"], prompt[:64], 16, "", "")
	stores(t, p["7/2"], prompt[:96], 16, "", "")
	stores(t, p["8/0"], prompt[:160], 16, "", "")
	stores(t, other, prompt[:48], 16, "", "")
	question := `{"token_ids":` + text(prompt) + `,"model_name":"m","routing_group":%q}`
	answers := func(group string, want map[string]map[string]int) dynamoAnswer {
		t.Helper()
		var a dynamoAnswer
		testenv.Until(t, fmt.Sprintf("the answer is %v", want), func() bool {
			a = dynamoAnswer{}
			status, _ := s.call("POST", "/query", fmt.Sprintf(question, group), &a)
			return status == http.StatusOK && maps.EqualFunc(a.Scores, want, maps.Equal)
		})
		return a
	}
	a := answers("default", map[string]map[string]int{"7": {"0": 32, "1": 64, "2": 96}, "8": {"0": 160}})
	if one := a.Instances["7"]; one.Longest != 96 || one.GPU != 96 || one.CPU != 0 || one.Disk != 0 || one.DP["1"] != 64 || a.Frequencies == nil {
		t.Errorf("%+v", a)
	}
	answers("batch", map[string]map[string]int{"7": {"0": 48}})
	var listed []struct {
		ID        string            `json:"instance_id"`
		Group     string            `json:"routing_group"`
		Endpoints map[string]string `json:"endpoints"`
	}
	ranks := func() (out []string) {
		t.Helper()
		listed = nil
		s.must(http.StatusOK, "GET", "/workers", "", &listed)
		for _, w := range listed {
			for rank := range w.Endpoints {
				out = append(out, w.Group+"/"+w.ID+"/"+rank)
			}
		}
		slices.Sort(out)
		return out
	}
	if got := ranks(); !slices.Equal(got, []string{"batch/7/0", "default/7/0", "default/7/1", "default/7/2", "default/8/0"}) {
		t.Errorf("workers %v", got)
	}
	if text := s.must(http.StatusBadRequest, "POST", "/query_by_hash", `{"block_hashes":[1,2],"model_name":"m","routing_group":"default"}`, nil); !strings.Contains(text, "token_ids") {
		t.Error(text)
	}
	s.must(http.StatusNotFound, "POST", "/register_peer", `{"url":"http://127.0.0.1:1"}`, nil)
	if text := s.must(http.StatusOK, "GET", "/dump?model_name=m&routing_group=batch", "", nil); !strings.Contains(text, `"instance_id":"7"`) || !strings.HasSuffix(text, "{\"end\":true}\n") {
		t.Error(text)
	}
	// One rank leaves, and the ranks beside it stay.
	s.must(http.StatusOK, "POST", "/unregister", `{"instance_id":7,"model_name":"m","dp_rank":1}`, nil)
	answers("default", map[string]map[string]int{"7": {"0": 32, "2": 96}, "8": {"0": 160}})
	if got := ranks(); !slices.Equal(got, []string{"batch/7/0", "default/7/0", "default/7/2", "default/8/0"}) {
		t.Errorf("workers %v", got)
	}
	s.must(http.StatusNotFound, "POST", "/unregister", `{"instance_id":7,"model_name":"m","dp_rank":1}`, nil)
	s.must(http.StatusOK, "POST", "/unregister", `{"instance_id":7,"model_name":"m","routing_group":"default"}`, nil)
	answers("default", map[string]map[string]int{"8": {"0": 160}})
	answers("batch", map[string]map[string]int{"7": {"0": 48}})
	s.must(http.StatusOK, "POST", "/unregister", `{"instance_id":8,"model_name":"m"}`, nil)
	s.must(http.StatusNotFound, "POST", "/query", fmt.Sprintf(question, "default"), nil)
	if text := s.must(http.StatusOK, "GET", "/metrics", "", nil); !strings.Contains(text, `warmpath_index_service_requests_total{endpoint="register",status="201"} 5`) {
		t.Error("registrations are not counted by their status 201")
	}
}

// The client calls what a client of Mooncake's conductor calls (Mooncake issue #1403): an instance serves several
// tenants, and has several adapters, each registered by a call of its own.
func TestAClientOfMooncakesConductorIsServed(t *testing.T) {
	s := startIndex(t, nil)
	p := publisher(t, 0)
	prompt := ids(1, 161)
	body := func(tenant, lora string) string {
		return fmt.Sprintf(`{"endpoint":%q,"replay_endpoint":%q,"type":"vLLM","modelname":"m","lora_name":%q,"tenant_id":%q,"instance_id":"vllm-1","block_size":16,"dp_rank":0,"additionalsalt":""}`,
			p.Endpoint(), p.ReplayEndpoint(), lora, tenant)
	}
	for _, tenant := range []string{"default", "acme"} {
		for _, lora := range []string{"", "sql", "chat"} {
			s.must(http.StatusCreated, "POST", "/register", body(tenant, lora), nil)
		}
	}
	stores(t, p, prompt[:32], 16, "", "")
	stores(t, p, prompt[:64], 16, "sql", "")
	stores(t, p, prompt[:96], 16, "chat", "")
	stores(t, p, prompt[:128], 16, "", "salt")
	type conductorAnswer map[string]struct {
		Longest int            `json:"longest_matched"`
		GPU     int            `json:"GPU"`
		CPU     int            `json:"CPU"`
		Disk    int            `json:"DISK"`
		DP      map[string]int `json:"DP"`
	}
	answers := func(tenant, model, lora, salt string, want int) {
		t.Helper()
		testenv.Until(t, fmt.Sprintf("%s has %d tokens of %s/%s/%s", tenant, want, model, lora, salt), func() bool {
			var all map[string]json.RawMessage
			var of conductorAnswer
			status, _ := s.call("POST", "/query", fmt.Sprintf(`{"model":%q,"lora_name":%q,"token_ids":%s,"tenant_id":%q,"instance_id":"vllm-1","block_size":16,"cache_salt":%q}`,
				model, lora, text(prompt), tenant, salt), &all)
			if status != http.StatusOK || json.Unmarshal(all[tenant], &of) != nil {
				return false
			}
			one := of["vllm-1"]
			return one.Longest == want && one.GPU == want && one.CPU == 0 && one.Disk == 0 && one.DP["0"] == want
		})
	}
	for _, tenant := range []string{"default", "acme"} {
		answers(tenant, "m", "", "", 32)
		answers(tenant, "m", "sql", "", 64)
		answers(tenant, "m", "chat", "", 96)
		answers(tenant, "m", "", "salt", 128)
		answers(tenant, "chat", "", "", 96) // the adapter's name as the model, as in requests to engines
		answers(tenant, "sql", "", "", 64)
	}
	for _, kind := range []string{"Mooncake", "llama"} {
		s.must(http.StatusBadRequest, "POST", "/register", strings.Replace(body("default", ""), "vLLM", kind, 1), nil)
	}
	s.must(http.StatusBadRequest, "POST", "/query_by_hash", `{"model":"m","seq_hashes":[1],"tenant_id":"acme","instance_id":"vllm-1"}`, nil)
	// An adapter leaves one tenant; then the whole instance does.
	s.must(http.StatusOK, "POST", "/unregister", body("acme", "sql"), nil)
	s.must(http.StatusNotFound, "POST", "/unregister", body("acme", "sql"), nil)
	s.must(http.StatusNotFound, "POST", "/query", `{"model":"sql","tenant_id":"acme","token_ids":[1]}`, nil)
	answers("acme", "chat", "", "", 96)
	answers("default", "sql", "", "", 64)
	s.must(http.StatusOK, "POST", "/unregister", body("acme", ""), nil)
	s.must(http.StatusNotFound, "POST", "/query", `{"model":"m","tenant_id":"acme","token_ids":[1]}`, nil)
	answers("default", "m", "", "", 32)
}

// A client with chats asks about them as they are: the service asks the engine for the token ids. The engine is
// in the service's list, so it may see the prompts of clients.
func TestAChatIsScoredAsTheEngineTokenizesIt(t *testing.T) {
	e := engine(t, nil)
	s := startIndex(t, func(c *config.Config) { c.Workers = []discovery.Target{{URL: e.URL()}} })
	chat := `{"model":"mock","messages":[{"role":"user","content":"` + strings.Repeat("A story that is told in many words. ", 40) + `"}],"max_tokens":1}`
	resp, err := s.client.Post(e.URL()+"/v1/chat/completions", "application/json", bytes.NewReader([]byte(chat)))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	testenv.Until(t, "the chat is found", func() bool {
		var a dynamoAnswer
		status, _ := s.call("POST", "/query", chat, &a)
		return status == http.StatusOK && a.Scores[e.URL()]["0"] > 100
	})
	var a dynamoAnswer
	s.must(http.StatusOK, "POST", "/query", strings.Replace(chat, "A story", "Another one", 1), &a)
	if n := a.Scores[e.URL()]["0"]; n > 32 {
		t.Errorf("another chat has %d tokens", n)
	}
}

// A registered worker was never asked whether it answers, and a service learns nothing from requests.
func TestTheLogOfAServiceSpeaksOfNoRequests(t *testing.T) {
	log := new(testenv.Buffer)
	s := startIndex(t, func(c *config.Config) { c.Events.Grace = time.Millisecond }, log)
	s.must(http.StatusCreated, "POST", "/register", `{"instance_id":"gpu-3","endpoint":"tcp://127.0.0.1:1","model_name":"m","block_size":16}`, nil)
	testenv.Until(t, "the log says that the events cannot be reached", func() bool {
		return strings.Contains(log.String(), "the KV events of worker gpu-3 at tcp://127.0.0.1:1 cannot be reached")
	})
	if text := log.String(); strings.Contains(text, "learned from requests") || strings.Contains(text, "answers but") {
		t.Errorf("the log of a service speaks as a router's:\n%s", text)
	}
}

// Events of SGLang do not contain extra_key. If questions have one, the worker's blocks are no longer believed.
func TestExtraKeysOfQuestionsCountAtAService(t *testing.T) {
	e := engine(t, func(c *mockengine.Config) { c.Kind = mockengine.SGLang })
	s := startIndex(t, func(c *config.Config) { c.Workers = []discovery.Target{{URL: e.URL()}} })
	trusts := func(want fleet.Trust, why string) func() bool {
		return func() bool {
			var all []struct {
				Ranks map[string]struct{ Trust, Why string }
			}
			s.must(http.StatusOK, "GET", "/workers", "", &all)
			return len(all) == 1 && all[0].Ranks["0"].Trust == want.String() && strings.Contains(all[0].Ranks["0"].Why, why)
		}
	}
	chats := 0
	chat := func() { // makes an event
		chats++
		resp, err := s.client.Post(e.URL()+"/v1/chat/completions", "application/json", strings.NewReader(fmt.Sprintf(
			`{"model":"mock","messages":[{"role":"user","content":"%d %s"}],"max_tokens":1}`, chats, strings.Repeat("A story of many words. ", 40))))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	chat()
	testenv.Until(t, "the worker is known", func() bool {
		return trusts(fleet.TrustExact, "")() || trusts(fleet.TrustDegraded, "")()
	})
	s.must(http.StatusOK, "POST", "/query", `{"model":"mock","token_ids":`+text(ids(1, 64))+`,"extra_key":"x"}`, nil)
	chat()
	testenv.Until(t, "the worker is no longer believed", trusts(fleet.TrustApproximate, "requests carry an extra_key"))
}
