package indexer

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// The answer has the shape of Dynamo's standalone indexer, in tokens. With tenant_id it also has that of Mooncake's
// conductor (Mooncake issue #1403).
func TestAQuestionIsAnsweredByWorkerRankAndTier(t *testing.T) {
	w := serve(t, Config{}, nil)
	a := w.worker("http://a", func(f *fleet.Facts) { f.Ranks = 2 })
	b := w.worker("http://b", nil)
	w.worker("http://c", nil)
	p := prompt(1, 200)
	w.store(a.Holders[0], p[:64], kvindex.Stored{})
	w.store(a.Holders[1], p[:128], kvindex.Stored{})
	w.store(b.Holders[0], p[:32], kvindex.Stored{})
	w.store(b.Holders[0], p[:96], kvindex.Stored{Tier: block.TierCPU})
	status, text := w.ask("POST", "/query", `{"model_name":"m","tenant_id":"default","token_ids":`+list(p)+`}`)
	const want = `{"model_name":"m","routing_group":"default","block_size":16,"tokens":200,` +
		`"scores":{"http://a":{"0":64,"1":128},"http://b":{"0":96}},"frequencies":[],"instances":{` +
		`"http://a":{"longest_matched":128,"gpu":128,"cpu":0,"disk":0,"remote":0,"trust":"exact","dp":{"0":64,"1":128},"ranks":{` +
		`"0":{"matched":64,"gpu":64,"cpu":0,"disk":0,"remote":0,"trust":"exact"},"1":{"matched":128,"gpu":128,"cpu":0,"disk":0,"remote":0,"trust":"exact"}}},` +
		`"http://b":{"longest_matched":96,"gpu":32,"cpu":64,"disk":0,"remote":0,"trust":"exact","dp":{"0":96},"ranks":{` +
		`"0":{"matched":96,"gpu":32,"cpu":64,"disk":0,"remote":0,"trust":"exact"}}}},` +
		`"default":{"http://a":{"longest_matched":128,"GPU":128,"CPU":0,"DISK":0,"DP":{"0":64,"1":128}},"http://b":{"longest_matched":96,"GPU":32,"CPU":64,"DISK":0,"DP":{"0":96}}}}`
	if status != http.StatusOK || strings.TrimSpace(text) != want || !json.Valid([]byte(text)) {
		t.Errorf("%d %s\nwant %s", status, text, want)
	}
	named := w.scores("/query", `{"token_ids":`+list(p)+`,"workers":["http://c/","http://b","http://unknown"]}`)
	if !reflect.DeepEqual(named, map[string]map[string]int{"http://b": {"0": 96}, "http://c": {"0": 0}}) {
		t.Errorf("the workers asked for have %v", named)
	}
	w.fleet.SetTrust(b.Holders[0], fleet.TrustNone, "the stream is lost")
	if got := w.scores("/query", `{"token_ids":`+list(p)+`,"instance_id":"http://b"}`); got["http://b"]["0"] != 0 {
		t.Errorf("entries that are not believed count: %v", got)
	}
}

// Keys are the service's own. They may be written as signed numbers, and sent in the form of indexer.proto.
func TestAQuestionMayHaveKeys(t *testing.T) {
	w := serve(t, Config{}, nil)
	a := w.worker("http://a", nil)
	p := prompt(1, 200)
	w.store(a.Holders[0], p[:128], kvindex.Stored{})
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		t.Fatal(err)
	}
	keys := h.Append(nil, h.Root(block.Scope{Model: "m"}), 0, p, nil)
	signed := make([]int64, len(keys))
	for i, k := range keys {
		signed[i] = int64(k)
	}
	for _, body := range []string{
		`{"model_name":"m","block_size":16,"keys":` + list(signed) + `}`,
		`{"keys":` + list(keys) + `,"algorithm":"xxh3","block_size":16}`,
	} {
		if got := w.scores("/query_by_hash", body); got["http://a"]["0"] != 128 {
			t.Errorf("%.60s…: %v", body, got)
		}
	}
	q := question{model: "m", keys: keys, blockSize: 16, salt: "s", extra: "e"}
	status, text := w.ask("POST", "/query_by_hash", string(q.appendTo(nil)), "Content-Type", protobuf)
	var a2 answer
	if err := a2.decode([]byte(text)); err != nil || status != http.StatusOK || len(a2.scores) != 1 || a2.blockSize != 16 ||
		a2.scores[0] != (score{worker: "http://a", matched: 128, full: 128, tier: [4]int{128}, trust: fleet.TrustExact}) {
		t.Errorf("%d %+v: %v", status, a2, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.scoped, []string{"http://a s/e"}) {
		t.Errorf("the feed heard of the keys %q", w.scoped)
	}
}

func TestPromptsOfOtherScopesDoNotMatch(t *testing.T) {
	w := serve(t, Config{}, nil)
	a := w.worker("http://a", nil)
	p := prompt(1, 200)
	w.store(a.Holders[0], p[:64], kvindex.Stored{})
	w.store(a.Holders[0], p[:96], kvindex.Stored{Scope: block.Scope{Salt: "s"}})
	w.store(a.Holders[0], p[:128], kvindex.Stored{Scope: block.Scope{LoRA: "sql"}})
	w.store(a.Holders[0], p[:160], kvindex.Stored{Scope: block.Scope{Extra: "e"}})
	for fields, want := range map[string]int{"": 64, `"cache_salt":"s",`: 96, `"lora_name":"sql",`: 128, `"extra_key":"e",`: 160, `"cache_salt":"other",`: 0, `"lora_name":"other",`: 0} {
		if got := w.scores("/query", `{`+fields+`"model_name":"m","token_ids":`+list(p)+`}`); got["http://a"]["0"] != want {
			t.Errorf("%s: %v, want %d", fields, got, want)
		}
	}
}

func TestAMistakeInAQuestionGetsAClearError(t *testing.T) {
	w := serve(t, Config{}, nil)
	w.worker("http://a", nil)
	for _, c := range []struct {
		path, body string
		status     int
		says       string
	}{
		{"/query", ``, 400, "must be a JSON object"},
		{"/query", `[]`, 400, "must be a JSON object"},
		{"/query", `{`, 400, "not valid JSON"},
		{"/query", `{"model_name":"m"}`, 400, "no prompt"},
		{"/query", `{"model_name":"m","token_ids":[1],"keys":[1],"block_size":16}`, 400, "several forms"},
		{"/query", `{"model_name":"m","token_ids":[1],"tokens":[1]}`, 400, "twice"},
		{"/query", `{"model_name":"m","token_ids":[-1]}`, 400, "token_ids[0]: -1 is not a whole number of 0 or more"},
		{"/query", `{"model_name":"m","tokens":[1,4294967296]}`, 400, "tokens[1]: 4294967296 is more than 4294967295"},
		{"/query", `{"model_name":"m","token_ids":[1,"2"]}`, 400, "token_ids[1] is not a number"},
		{"/query", `{"model_name":"m","token_ids":[1],"workers":"http://a"}`, 400, "workers must be a list"},
		{"/query", `{"model_name":"m","keys":[1],"block_size":"16"}`, 400, "block_size must be a whole number"},
		{"/query", `{"model_name":"m","keys":"1","block_size":16}`, 400, "keys must be a list"},
		{"/query", `{"model_name":"m","token_ids":[1.5]}`, 400, "not a whole number"},
		{"/query", `{"model_name":"m","token_ids":"1,2"}`, 400, "token_ids must be a list of whole numbers"},
		{"/query", `{"model_name":5,"token_ids":[1]}`, 400, "must be a string"},
		{"/query", `{"model_name":"m","model":"n","token_ids":[1]}`, 400, "twice"},
		{"/query", `{"model_name":"other","token_ids":[1]}`, 404, "no worker serves the model"},
		{"/query", `{"model_name":"m","tenant_id":"t","token_ids":[1]}`, 404, "group"},
		{"/query", `{"model_name":"m","prompt":"hello"}`, 422, "only token_ids and keys"},
		{"/query_by_hash", `{"model_name":"m","keys":[1]}`, 400, "block_size"},
		{"/query_by_hash", `{"model_name":"m","keys":[1],"block_size":32}`, 409, "32 tokens"},
		{"/query_by_hash", `{"model_name":"m","keys":[1],"block_size":16,"algorithm":"md5"}`, 400, "algorithm"},
		{"/query_by_hash", `{"model_name":"m","keys":[1e30],"block_size":16}`, 400, "64 bits"},
		{"/query_by_hash", `{"model_name":"m","block_hashes":[1]}`, 400, "send token_ids to /query"},
		{"/query_by_hash", `{"model":"m","seq_hashes":[1],"tenant_id":"default"}`, 400, "send token_ids to /query"},
		{"/register", `{"model_name":"m","endpoint":"tcp://h:1"}`, 400, "instance_id"},
		{"/register", `{"instance_id":1,"endpoint":"tcp://h:1"}`, 400, "model_name"},
		{"/register", `{"instance_id":1,"model_name":"m"}`, 400, "endpoint"},
		{"/register", `{"instance_id":1,"model_name":"m","endpoint":"http://h:1"}`, 400, "tcp://"},
		{"/register", `{"instance_id":1,"model_name":"m","endpoint":"tcp://*:1"}`, 400, "no host"},
		{"/register", `{"instance_id":1,"model_name":"m","endpoint":"tcp://h:1","dp_rank":5000}`, 400, "4095"},
		{"/register", `{"instance_id":1,"model_name":"m","endpoint":"tcp://h:1","dp_rank":-1}`, 400, "negative"},
		{"/register", `{"instance_id":1,"model_name":"m","endpoint":"tcp://h:1","block_size":70000}`, 400, "block_size"},
		{"/register", `{"instance_id":1,"model_name":"m","endpoint":"tcp://h:1","dp_size":300}`, 400, "at most 256"},
		{"/register", `{"instance_id":1,"model_name":"m","endpoint":"tcp://h:1","type":"Mooncake"}`, 400, "register the engines"},
		{"/register", `{"instance_id":1,"model_name":"m","endpoint":"tcp://h:1","type":"vlm"}`, 400, "use vLLM, SGLang"},
		{"/register_peer", `{"url":"http://other:8090"}`, 404, "no peers"},
		{"/deregister_peer", `{"url":"http://other:8090"}`, 404, "no peers"},
		{"/reopen_logs", ``, 404, "standard error"},
		{"/unregister", `{"instance_id":"x"}`, 404, "registered"},
		{"/unregister", `{}`, 400, "instance_id"},
	} {
		status, text := w.ask("POST", c.path, c.body)
		var out struct{ Error string }
		if err := json.Unmarshal([]byte(text), &out); err != nil || status != c.status || !strings.Contains(out.Error, c.says) {
			t.Errorf("%s %s: %d %s, want %d and %q", c.path, c.body, status, text, c.status, c.says)
		}
	}
	if status, text := w.ask("GET", "/query", ""); status != http.StatusMethodNotAllowed {
		t.Errorf("%d %s", status, text)
	}
	if status, text := w.ask("GET", "/select", ""); status != http.StatusNotFound {
		t.Errorf("%d %s", status, text)
	}
	if status, text := w.ask("POST", "/query", "\xff\xff", "Content-Type", protobuf); status != http.StatusBadRequest {
		t.Errorf("%d %s", status, text)
	}
}

func TestARequestWithoutTheKeyIsRefused(t *testing.T) {
	w := serve(t, Config{Key: "secret-key"}, nil)
	w.worker("http://a", nil)
	for _, c := range []struct {
		path, key string
		want      int
	}{{"/query", "", 401}, {"/query", "Bearer secret-kez", 401}, {"/query", "secret-key", 401}, {"/query", "Bearer secret-key", 200}} {
		if status, text := w.ask("POST", c.path, `{"token_ids":[1]}`, "Authorization", c.key); status != c.want {
			t.Errorf("with %q: %d %s, want %d", c.key, status, text, c.want)
		}
	}
	if status, _ := w.ask("GET", "/health", ""); status != http.StatusOK {
		t.Errorf("/health answers %d", status)
	}
}

func TestBodiesAreBounded(t *testing.T) {
	w := serve(t, Config{}, nil)
	w.worker("http://a", nil)
	if status, text := w.ask("POST", "/query", strings.Repeat(" ", maxBody+1)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %.200s", status, text)
	}
	w.service.bodies.used.Store(maxBodies)
	if status, text := w.ask("POST", "/query", `{"token_ids":[1]}`); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, text)
	}
	w.service.bodies.used.Store(0)
	if status, text := w.ask("POST", "/query", `{"token_ids":[1]}`); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	for _, c := range []struct{ n, want int }{{100, 200}, {shortBody + 100, 200}, {maxUnknown + 100, 413}} {
		body := strings.Repeat(" ", c.n) + `{"token_ids":[1]}`
		resp, err := http.Post(w.url+"/query", "application/json", io.MultiReader(strings.NewReader(body))) // without Content-Length
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%d bytes without an announced length: %d, want %d", len(body), resp.StatusCode, c.want)
		}
	}
	if n := w.service.bodies.used.Load(); n != 0 {
		t.Errorf("%d bytes are still being read", n)
	}
}

// Clients that send long bodies slowly do not lock out short questions.
func TestLongBodiesLeaveRoomForShortOnes(t *testing.T) {
	w := serve(t, Config{}, nil)
	w.worker("http://a", nil)
	const long, fit = 10 << 20, (maxBodies - keptForShort) / (10 << 20)
	send := func() net.Conn { // sends a header, and no body
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(conn, "POST /query HTTP/1.1\r\nHost: index\r\nContent-Length: %d\r\n\r\n", long)
		return conn
	}
	var clients []net.Conn
	for range fit {
		clients = append(clients, send())
	}
	testenv.Until(t, "all of them are being read", func() bool { return w.service.bodies.used.Load() == fit*long })
	more := send()
	defer more.Close()
	if resp, err := http.ReadResponse(bufio.NewReader(more), nil); err != nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one more long body: %v, %v", resp, err)
	}
	for range 3 {
		if status, text := w.ask("POST", "/query", `{"token_ids":[1]}`); status != http.StatusOK {
			t.Errorf("a short body: %d %s", status, text)
		}
	}
	var a answer
	if err := w.dial().Invoke(t.Context(), rpcName+"Score", &question{model: "m", tokens: []block.Token{1}}, &a); err != nil {
		t.Errorf("a call over gRPC: %v", err)
	}
	for _, conn := range clients {
		_ = conn.Close()
	}
	testenv.Until(t, "nothing is read", func() bool { return w.service.bodies.used.Load() == 0 })
}

func TestTheListOfWorkersSaysHowFarTheyAreTrusted(t *testing.T) {
	w := serve(t, Config{}, func(p *Parts) {
		p.Listed, p.ListedAll = func(string) string { return "" }, func() map[string]string { return map[string]string{"http://a": "list"} }
	})
	w.worker("http://a", func(f *fleet.Facts) { f.Ranks, f.Events = 2, []fleet.EventSource{{Rank: 1, Endpoint: "tcp://a:1"}} })
	if _, err := w.service.register(&registration{worker: "7", models: []fleet.Model{{ID: "n"}}, group: "g", sources: []fleet.EventSource{{Endpoint: "tcp://b:2"}}}); err != nil {
		t.Fatal(err)
	}
	_, text := w.ask("GET", "/workers", "")
	want := `[{"instance_id":"http://a","model_name":"m","routing_group":"default","block_size":16,"engine_block_size":16,"algorithm":"xxh3","source":"list",` +
		`"endpoints":{"1":"tcp://a:1"},"ranks":{"0":{"trust":"exact","why":"test"},"1":{"trust":"exact","why":"test"}}},` +
		`{"instance_id":"7","model_name":"n","routing_group":"g","block_size":16,"algorithm":"xxh3","source":"registered","endpoints":{"0":"tcp://b:2"},` +
		`"ranks":{"0":{"trust":"approximate","why":"no events"}}}]`
	if strings.TrimSpace(text) != want {
		t.Errorf("%s\nwant %s", text, want)
	}
	_, text = w.ask("GET", "/workers", "", "Accept", protobuf)
	var l listing
	if err := l.decode([]byte(text)); err != nil || len(l.workers) != 2 || len(l.workers[0].ranks) != 2 || l.workers[0].ranks[1].trust != fleet.TrustExact || l.workers[1].group != "g" {
		t.Errorf("%+v: %v", l, err)
	}
}

// A service that sends no requests learns nothing from them, and does not say so of a worker whose events it cannot
// reach. A router that asks the service does learn from its requests.
func TestTheReasonOfATrustIsTrueWhereItStands(t *testing.T) {
	const unreachable = "no events since 12:30:01 UTC: tcp://a:1 cannot be reached (connection refused)"
	for _, c := range []struct {
		routes         bool
		why            string
		service, there string // the reason at the service, and at a router that asks it
	}{
		{false, unreachable + "; " + fleet.LearnedFromRequests, unreachable, unreachable + "; " + fleet.LearnedFromRequests},
		{false, "no events: " + fleet.LearnedFromRequests, "no events", "no events; " + fleet.LearnedFromRequests},
		{false, "test", "test", "test; " + fleet.LearnedFromRequests},
		{true, unreachable + "; " + fleet.LearnedFromRequests, unreachable + "; " + fleet.LearnedFromRequests, unreachable + "; " + fleet.LearnedFromRequests},
	} {
		w := serve(t, Config{}, func(p *Parts) { p.Routes = c.routes })
		here := w.worker("http://a", nil)
		w.fleet.SetTrust(here.Holders[0], fleet.TrustApproximate, c.why)
		if got := w.service.list().workers[0].ranks[0].why; got != c.service {
			t.Errorf("%q at a service: %q, want %q", c.why, got, c.service)
		}
		a := newAsker(t, w.url, func(c *ClientConfig, _ *warmpath.Options) { c.Register = false })
		mine := a.put("http://a", fleet.Facts{Models: []fleet.Model{{ID: "m"}}, BlockSize: 16})
		testenv.Until(t, "the router has the reason", func() bool {
			_, why := a.fleet.Snapshot().Trust(mine.Holders[0])
			return why == c.there
		})
	}
	if why := relearned(fleet.TrustExact, "test"); why != "test" {
		t.Errorf("an exact trust: %q", why)
	}
}

func ExampleConfig_Validate() {
	fmt.Println(Config{Listen: "0.0.0.0:8090"}.Validate())
	// Output:
	// key: 0.0.0.0:8090 can be reached from other machines, so the index service needs a key: set index_service.key_file or WARMPATH_INDEX_KEY, or listen on 127.0.0.1
}
