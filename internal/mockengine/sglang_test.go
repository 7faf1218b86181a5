package mockengine

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// rooms starts a prefill worker and a decode worker that imitate SGLang.
func rooms(t *testing.T, change func(role Role, c *Config)) (prefill, decode *Server) {
	t.Helper()
	return pair(t, Rooms, func(role Role, c *Config) {
		c.Kind, c.Version, c.Transfer.RetryEvery = SGLang, "", 5*time.Millisecond
		if change != nil {
			change(role, c)
		}
	})
}

// inRoom returns a body with the fields of a room of the prefill worker.
func inRoom(t *testing.T, prefill *Server, body object, room any, more ...any) object {
	t.Helper()
	host, digits, err := net.SplitHostPort(prefill.SideChannel())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}
	fields := object{"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room, "max_tokens": 20}
	for i := 0; i+1 < len(more); i += 2 {
		fields[more[i].(string)] = more[i+1]
	}
	return with(body, fields)
}

// sent is the answer of a request that was sent in the background.
type sent struct {
	status int // 0: no whole answer
	data   string
}

func (a sent) text(t *testing.T) string {
	t.Helper()
	var answer object
	if err := json.Unmarshal([]byte(a.data), &answer); err != nil || a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.data)
	}
	return textOf(t, answer)
}

// post sends a request in the background.
func post(t *testing.T, ctx context.Context, s *Server, path string, body object) <-chan sent {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+path, strings.NewReader(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	c, ended := client(t), make(chan sent, 1)
	go func() {
		response, err := c.Do(request)
		if err != nil {
			ended <- sent{}
			return
		}
		defer response.Body.Close()
		data, err := io.ReadAll(response.Body)
		if err != nil {
			ended <- sent{}
			return
		}
		ended <- sent{response.StatusCode, string(data)}
	}()
	return ended
}

func TestTheLegsOfAnSGLangMeetInARoomWhicheverComesFirst(t *testing.T) {
	for _, c := range []struct {
		path string
		body object
	}{{chatPath, chatOfWords}, {"/v1/completions", completionOfWords}} {
		alone := start(t, func(c *Config) { c.Kind = SGLang })
		want := textOf(t, whole(t, alone, c.path, with(c.body, object{"max_tokens": 20})))
		prefill, decode := rooms(t, nil)
		for room, first := range []*Server{prefill, decode} {
			second := decode
			if first == decode {
				second = prefill
			}
			one := post(t, t.Context(), first, c.path, inRoom(t, prefill, c.body, room))
			testenv.Until(t, "the first leg waits", func() bool {
				bootstrapping, _ := metricOf(t, prefill, "sglang:num_prefill_bootstrap_queue_reqs")
				return bootstrapping == 1 || decode.Stats().Ranks[0].Awaiting == 1
			})
			if first == prefill && prefill.Stats().Ranks[0].Steps != 0 {
				t.Error("the prefill worker computes before the decode worker has come")
			}
			two := <-post(t, t.Context(), second, c.path, inRoom(t, prefill, c.body, room))
			answers := map[*Server]sent{first: <-one, second: two}
			if got := answers[decode].text(t); got != want {
				t.Errorf("%s: decode worker answers %q, want %q", c.path, got, want)
			}
			if got := answers[prefill].text(t); got == "" || !strings.HasPrefix(want, got) {
				t.Errorf("%s: prefill worker answers %q, want one token of %q", c.path, got, want)
			}
			if prefill.held() != 0 || decode.held() != 0 {
				t.Errorf("%d and %d blocks are held", prefill.held(), decode.held())
			}
			if a, b := cachedIn(t, answers[prefill]), cachedIn(t, answers[decode]); a != b || (room == 1) != (a > 0) {
				t.Errorf("room %d: cached tokens %d and %d", room, a, b)
			}
		}
	}
}

func cachedIn(t *testing.T, a sent) int {
	t.Helper()
	var answer struct {
		Usage struct {
			Details *struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal([]byte(a.data), &answer); err != nil {
		t.Fatal(err)
	}
	if answer.Usage.Details == nil {
		return 0
	}
	return answer.Usage.Details.Cached
}

func TestABatchHasARoomForEachPrompt(t *testing.T) {
	alone := start(t, func(c *Config) { c.Kind = SGLang })
	prefill, decode := rooms(t, nil)
	body := object{"model": "mock", "temperature": 0, "prompt": []string{"first prompt", "second prompt"}}
	want := textsOf(t, sent{http.StatusOK, string(must(call(t, alone, "/v1/completions", with(body, object{"max_tokens": 20}))))})
	for _, room := range []any{[]int{70, 90}, 100} {
		more := []any{}
		if _, list := room.([]int); list {
			host, digits, _ := net.SplitHostPort(prefill.SideChannel())
			port, _ := strconv.Atoi(digits)
			more = []any{"bootstrap_host", []string{host, host}, "bootstrap_port", []int{port, port}}
		}
		one := post(t, t.Context(), prefill, "/v1/completions", inRoom(t, prefill, body, room, more...))
		got := textsOf(t, <-post(t, t.Context(), decode, "/v1/completions", inRoom(t, prefill, body, room, more...)))
		if strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("room %v: %q, want %q", room, got, want)
		}
		if a := <-one; a.status != http.StatusOK {
			t.Errorf("prefill worker: %+v", a)
		}
	}
	if a := <-post(t, t.Context(), decode, "/v1/completions", inRoom(t, prefill, body, []int{1})); a.status != http.StatusBadRequest {
		t.Errorf("one room in a list for two prompts: %+v", a)
	}
}

func must(_ int, data []byte) []byte { return data }

func textsOf(t *testing.T, a sent) (texts []string) {
	t.Helper()
	var answer struct {
		Choices []struct{ Text string }
	}
	if err := json.Unmarshal([]byte(a.data), &answer); err != nil || a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.data)
	}
	for _, c := range answer.Choices {
		texts = append(texts, c.Text)
	}
	return texts
}

func TestTheRankOfTheRoomMustBeThatOfThePrefillLeg(t *testing.T) {
	for name, c := range map[string]struct {
		room            int
		prefill, decode []any
		free, meet      bool
	}{
		"both follow the room":               {room: 5, meet: true},
		"both are told the rank":             {room: 5, prefill: []any{"routed_dp_rank", 0}, decode: []any{"disagg_prefill_dp_rank", 0}, meet: true},
		"only the prefill leg is told":       {room: 5, prefill: []any{"routed_dp_rank", 0}},
		"the decode leg is told another one": {room: 5, decode: []any{"disagg_prefill_dp_rank", 0}},
		"the bootstrap server knows it":      {room: 5, prefill: []any{"routed_dp_rank", 0}, free: true, meet: true},
	} {
		prefill, decode := rooms(t, func(_ Role, cfg *Config) {
			cfg.Ranks, cfg.Transfer.FreeRanks = 2, c.free
			if !c.meet {
				cfg.Transfer.MeetTimeout = 30 * time.Millisecond
			}
		})
		one := post(t, t.Context(), prefill, chatPath, inRoom(t, prefill, chatOfWords, c.room, c.prefill...))
		two := <-post(t, t.Context(), decode, chatPath, inRoom(t, prefill, chatOfWords, c.room, c.decode...))
		want := map[bool]int{true: http.StatusOK, false: http.StatusInternalServerError}[c.meet]
		if a := <-one; a.status != want || two.status != want {
			t.Errorf("%s: %d and %d, want %d\n%s\n%s", name, a.status, two.status, want, a.data, two.data)
		}
	}
}

func TestALegWithoutItsPartnerEndsWithTheEnginesWords(t *testing.T) {
	prefill, decode := rooms(t, func(_ Role, c *Config) { c.Transfer.MeetTimeout = 20 * time.Millisecond })
	dead := inRoom(t, prefill, chatOfWords, 4, "bootstrap_port", 1, "rid", "r4")
	for name, c := range map[string]struct {
		s    *Server
		body object
		want string
	}{
		"prefill":   {prefill, inRoom(t, prefill, chatOfWords, 1, "rid", "r1"), "Prefill bootstrap failed for request rank=0 req.rid='r1' req.bootstrap_room=1 with exception KVTransferError(bootstrap_room=1): Request 1 timed out after 0.0s in KVPoll.Bootstrapping"},
		"decode":    {decode, inRoom(t, prefill, chatOfWords, 2, "rid", "r2"), "Decode transfer failed for request rank=0 decode_req.req.rid='r2' decode_req.req.bootstrap_room=2 with exception KVTransferError(bootstrap_room=2): Request 2 timed out after 0.0s in KVPoll.WaitingForInput"},
		"rank":      {decode, inRoom(t, prefill, chatOfWords, 3, "disagg_prefill_dp_rank", 3), "Could not fetch bootstrap info for: prefill_dp_rank: 3 prefill_cp_rank: 0 target_tp_rank: 0 and target_pp_rank 0"},
		"bootstrap": {decode, dead, "Could not fetch prefill parallel info from 127.0.0.1:1 after 15 attempts"},
	} {
		if a := <-post(t, t.Context(), c.s, chatPath, c.body); a.status != http.StatusInternalServerError || !strings.Contains(a.data, c.want) {
			t.Errorf("%s: %+v, want %q", name, a, c.want)
		}
		if a := <-post(t, t.Context(), c.s, chatPath, with(c.body, object{"stream": true})); !strings.HasPrefix(a.data, "data: ") || !strings.Contains(a.data, c.want) {
			t.Errorf("%s, streamed: %+v", name, a)
		}
	}
	for _, s := range []*Server{prefill, decode} {
		if a := <-post(t, t.Context(), s, chatPath, with(chatOfWords, object{"rid": "r"})); a.status != http.StatusBadRequest || !strings.Contains(a.data, "without bootstrap room id. req.rid='r'") {
			t.Errorf("without a room: %+v", a)
		}
		if s.held() != 0 {
			t.Errorf("%d blocks are held", s.held())
		}
	}
}

func TestALegThatEndsTakesTheOtherWithIt(t *testing.T) {
	for _, how := range []string{"decode client leaves", "prefill client leaves", "decode is aborted", "prefill is aborted", "prefill dies"} {
		prefill, decode := rooms(t, nil)
		fault(t, prefill, object{"kind": "hold_transfer"})
		leave, cancel := context.WithCancel(t.Context())
		defer cancel()
		contexts := map[*Server]context.Context{prefill: t.Context(), decode: t.Context()}
		leaver, other := decode, prefill
		if strings.HasPrefix(how, "prefill") {
			leaver, other = prefill, decode
		}
		contexts[leaver] = leave
		legs := map[*Server]<-chan sent{}
		for _, s := range []*Server{prefill, decode} {
			legs[s] = post(t, contexts[s], s, chatPath, inRoom(t, prefill, chatOfWords, 7, "rid", "r7"))
		}
		testenv.Until(t, "the transfer has begun", func() bool {
			inflight, _ := metricOf(t, prefill, "sglang:num_prefill_inflight_queue_reqs")
			return inflight == 1 && decode.Stats().Ranks[0].Awaiting == 1
		})
		switch {
		case strings.HasSuffix(how, "leaves"):
			cancel()
		case strings.HasSuffix(how, "aborted"):
			if status, _ := call(t, leaver, "/abort_request", object{"rid": "r7"}); status != http.StatusOK {
				t.Errorf("abort: status %d", status)
			}
			if a := <-legs[leaver]; a.status != http.StatusOK || !strings.Contains(a.data, `"finish_reason":"abort"`) {
				t.Errorf("%s: the aborted leg: %+v", how, a)
			}
		default:
			if err := prefill.Die(); err != nil {
				t.Fatal(err)
			}
		}
		if a := <-legs[other]; a.status != http.StatusInternalServerError || !strings.Contains(a.data, "KVTransferError(bootstrap_room=7)") {
			t.Errorf("%s: the other leg: %+v", how, a)
		}
		testenv.Until(t, "no block is held", func() bool {
			return decode.held() == 0 && (how == "prefill dies" || prefill.held() == 0)
		})
	}
}

func TestTheFaultsOfABootstrap(t *testing.T) {
	prefill, decode := rooms(t, nil)
	fault(t, prefill, object{"kind": "late_bootstrap", "delay": "1h"})
	one := post(t, t.Context(), prefill, chatPath, inRoom(t, prefill, chatOfWords, 1))
	if a := <-post(t, t.Context(), decode, chatPath, inRoom(t, prefill, chatOfWords, 1)); !strings.Contains(a.data, "after 15 attempts") {
		t.Errorf("late_bootstrap: %+v", a)
	}
	fault(t, prefill, object{"kind": "clear"})
	if a := <-post(t, t.Context(), decode, chatPath, inRoom(t, prefill, chatOfWords, 1)); a.status != http.StatusOK {
		t.Errorf("after late_bootstrap: %+v", a)
	}
	<-one
	for s, kind := range map[*Server]string{prefill: "prefill_errors", decode: "refuse_decode"} {
		fault(t, s, object{"kind": kind, "share": 1})
		if a := <-post(t, t.Context(), s, chatPath, inRoom(t, prefill, chatOfWords, 2)); a.status < 500 || !strings.Contains(a.data, "a fault of the mock engine") {
			t.Errorf("%s: %+v", kind, a)
		}
	}
	prefill, decode = rooms(t, func(_ Role, c *Config) { c.Transfer.MeetTimeout = 20 * time.Millisecond })
	fault(t, prefill, object{"kind": "wrong_room", "share": 1})
	one = post(t, t.Context(), prefill, chatPath, inRoom(t, prefill, chatOfWords, 1))
	two := <-post(t, t.Context(), decode, chatPath, inRoom(t, prefill, chatOfWords, 1))
	if a := <-one; a.status != http.StatusInternalServerError || two.status != http.StatusInternalServerError {
		t.Errorf("wrong_room: %+v, %+v", a, two)
	}
}

// testdata/sglang_route.json was written by SGLang 0.5.23's own CommonKVBootstrapServer; its README has the command.
func TestTheBootstrapServerAnswersAsTheEnginesOwn(t *testing.T) {
	prefill, _ := rooms(t, func(_ Role, c *Config) { c.Ranks, c.BlockSize = 2, 32 })
	data, err := os.ReadFile("testdata/sglang_route.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Method, Path string
		Body         any
		Status       int
		Answer       string
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 {
		t.Fatal("no cases")
	}
	for _, c := range cases {
		var body any
		if c.Method == http.MethodPost {
			body = c.Body
		}
		side := &Server{addr: prefill.SideChannel()}
		status, answer := call(t, side, c.Path, body)
		if status != c.Status {
			t.Errorf("%s %s: status %d, want %d", c.Method, c.Path, status, c.Status)
		}
		var got, want object
		if json.Unmarshal([]byte(c.Answer), &want) != nil {
			if string(answer) != c.Answer {
				t.Errorf("%s: %q, want %q", c.Path, answer, c.Answer)
			}
			continue
		}
		if err := json.Unmarshal(answer, &got); err != nil {
			t.Fatal(err)
		}
		for key, value := range want {
			switch key {
			case "rank_ip", "rank_port", "prefill_http_port": // these differ
				value = got[key]
			}
			if _, has := got[key]; !has || value != got[key] {
				t.Errorf("%s: %s is %v, want %v", c.Path, key, got[key], value)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %v, want %v", c.Path, got, want)
		}
	}
}

func TestARoleSwitchDropsTheCacheAndIsReported(t *testing.T) {
	prefill, decode := rooms(t, func(_ Role, c *Config) { c.Transfer.SwitchRoles = true })
	mode := func(s *Server) string { return fetched(t, s, "/server_info")["disaggregation_mode"].(string) }
	if a, b := mode(prefill), mode(decode); a != "prefill" || b != "decode" {
		t.Errorf("modes %s and %s", a, b)
	}
	one := post(t, t.Context(), prefill, chatPath, inRoom(t, prefill, chatOfWords, 1))
	testenv.Until(t, "the leg waits", func() bool { n, _ := metricOf(t, prefill, "sglang:num_prefill_bootstrap_queue_reqs"); return n == 1 })
	if status, data := call(t, prefill, "/pd_role_switch", object{"new_role": "decode"}); status != 400 || !strings.Contains(string(data), "instance is not idle") {
		t.Errorf("busy: status %d: %s", status, data)
	}
	<-post(t, t.Context(), decode, chatPath, inRoom(t, prefill, chatOfWords, 1))
	<-one
	testenv.Until(t, "the engine is idle", func() bool { return prefill.life.active.Load() == 0 })
	for _, c := range []struct {
		body   object
		status int
		words  string
	}{
		{object{"new_role": "both"}, 400, "invalid new_role='both'"},
		{object{"new_role": "decode", "prepare_only": true}, 200, `"message":"ready"`},
		{object{"new_role": "decode"}, 200, `"new_role":"decode"`},
		{object{"new_role": "decode"}, 200, `"old_role":"decode"`},
	} {
		if status, data := call(t, prefill, "/pd_role_switch", c.body); status != c.status || !strings.Contains(string(data), c.words) {
			t.Errorf("%v: status %d: %s", c.body, status, data)
		}
	}
	if mode(prefill) != "decode" || len(prefill.CachedHashes(0, 0)) != 0 {
		t.Errorf("after the switch: mode %s, %d blocks cached", mode(prefill), len(prefill.CachedHashes(0, 0)))
	}
	plain, _ := rooms(t, nil)
	if status, data := call(t, plain, "/pd_role_switch", object{"new_role": "decode"}); status != 400 || !strings.Contains(string(data), "--enable-pd-role-switch is not set on this server") {
		t.Errorf("without the flag: status %d: %s", status, data)
	}
}

// fetched returns the answer to a GET.
func fetched(t *testing.T, s *Server, path string) (answer object) {
	t.Helper()
	status, data := call(t, s, path, nil)
	if err := json.Unmarshal(data, &answer); err != nil || status != http.StatusOK {
		t.Fatalf("%s: status %d: %s", path, status, data)
	}
	return answer
}
