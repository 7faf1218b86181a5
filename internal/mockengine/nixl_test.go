package mockengine

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/test/testenv"
)

// pair starts a prefill worker and a decode worker with the connector.
func pair(t *testing.T, connector Connector, change func(role Role, c *Config)) (prefill, decode *Server) {
	t.Helper()
	of := func(role Role) *Server {
		return start(t, func(c *Config) {
			c.Transfer.Connector, c.Transfer.Role = connector, role
			if change != nil {
				change(role, c)
			}
		})
	}
	return of(Prefill), of(Decode)
}

// with returns a copy of body with further fields.
func with(body, more object) object {
	merged := object{}
	for _, fields := range []object{body, more} {
		for k, v := range fields {
			merged[k] = v
		}
	}
	return merged
}

// prefillLeg sends the prefill leg of a request over NIXL, and returns the kv_transfer_params of its answer.
func prefillLeg(t *testing.T, s *Server, path string, body object, header ...string) (params, answer object) {
	t.Helper()
	leg := with(body, object{"max_tokens": 1, "stream": false, "return_token_ids": true})
	if leg["kv_transfer_params"] == nil {
		leg["kv_transfer_params"] = object{"do_remote_decode": true, "do_remote_prefill": false}
	}
	status, data := call(t, s, path, leg, header...)
	if status != http.StatusOK {
		t.Fatalf("prefill leg: status %d: %s", status, data)
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		t.Fatal(err)
	}
	params, _ = answer["kv_transfer_params"].(object)
	return params, answer
}

// whole sends a request that must succeed, and returns its answer.
func whole(t *testing.T, s *Server, path string, body object, header ...string) (answer object) {
	t.Helper()
	status, data := call(t, s, path, body, header...)
	if status != http.StatusOK {
		t.Fatalf("%s: status %d: %s", path, status, data)
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

// metricOf returns the sum of a metric's lines, and false if there is none.
func metricOf(t *testing.T, s *Server, name string) (sum float64, found bool) {
	t.Helper()
	_, data := call(t, s, "/metrics", nil)
	for _, line := range regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(name)+`(\{.*\})? (\S+)$`).FindAllStringSubmatch(string(data), -1) {
		value, err := strconv.ParseFloat(line[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum, found = sum+value, true
	}
	return sum, found
}

func (s *Server) held() int { return s.Stats().Ranks[0].UsedBlocks }

var chatOfWords = object{"model": "mock", "temperature": 0, "messages": []any{object{"role": "user",
	"content": strings.Repeat("many words make many blocks ", 40)}}}

var completionOfWords = object{"model": "mock", "temperature": 0, "prompt": strings.Repeat("many words make many blocks ", 40)}

func TestNIXLPullMovesTheBlocksOfAPromptAndGivesTheSameAnswerAsOneEngine(t *testing.T) {
	for _, c := range []struct {
		path string
		body object
	}{{chatPath, chatOfWords}, {"/v1/completions", completionOfWords}} {
		alone := start(t, nil)
		want := textOf(t, whole(t, alone, c.path, with(c.body, object{"max_tokens": 20})))
		prefill, decode := pair(t, NIXL, nil)
		params, first := prefillLeg(t, prefill, c.path, c.body, "X-Request-Id", "r1")
		tokens := int(first["usage"].(object)["prompt_tokens"].(float64))
		blocks := (tokens + 15) / 16
		if n := prefill.held(); n != blocks {
			t.Fatalf("after the prefill leg %d blocks are held, want %d", n, blocks)
		}
		if n := int(params["remote_num_tokens"].(float64)); n != tokens {
			t.Errorf("remote_num_tokens %d, want %d", n, tokens)
		}
		answer := whole(t, decode, c.path, with(c.body, object{"max_tokens": 20, "kv_transfer_params": params}))
		if got := textOf(t, answer); got != want {
			t.Errorf("%s: answer %q, want that of one engine %q", c.path, got, want)
		}
		if n := prefill.held(); n != 0 {
			t.Errorf("after the decode leg the prefill worker holds %d blocks", n)
		}
		if a, b := prefill.CachedHashes(0, block.TierGPU), decode.CachedHashes(0, block.TierGPU); !contains(b, a) {
			t.Errorf("decode worker lacks blocks of the prefill worker: %d of %d", len(b), len(a))
		}
		if hits, _ := metricOf(t, decode, "vllm:external_prefix_cache_hits_total"); int(hits) != tokens {
			t.Errorf("decode worker received %g tokens, want %d", hits, tokens)
		}
		if computed := decode.Stats().Ranks[0].Steps; computed == 0 {
			t.Error("decode worker made no step")
		}
	}
}

func contains(all, some []uint64) bool {
	return !slices.ContainsFunc(some, func(h uint64) bool { return !slices.Contains(all, h) })
}

// text2 returns the text of an answer to a chat or a completion.
func textOf(t *testing.T, answer object) string {
	t.Helper()
	choice := answer["choices"].([]any)[0].(object)
	if message, chat := choice["message"].(object); chat {
		return message["content"].(string)
	}
	return choice["text"].(string)
}

// testdata/nixl.json has the kv_transfer_params of the answers of two vLLM 0.32 (NixlConnector with
// bidirectional_kv_xfer, on a CPU) to the second turn of a chat.
func TestTheTransferParametersHaveTheFieldsOfARealEngine(t *testing.T) {
	prefill, decode := pair(t, NIXL, func(_ Role, c *Config) { c.Transfer.Bidirectional = true })
	params, _ := prefillLeg(t, prefill, chatPath, chatOfWords, "X-Request-Id", "r1")
	kept := whole(t, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": params}), "X-Request-Id", "r1")["kv_transfer_params"].(object)
	data, err := os.ReadFile("testdata/nixl.json")
	if err != nil {
		t.Fatal(err)
	}
	var real map[string]object
	if err := json.Unmarshal(data, &real); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]object{"prefill": params, "decode": kept} {
		want := real[name]
		for key, value := range want {
			if fmt.Sprintf("%T", got[key]) != fmt.Sprintf("%T", value) {
				t.Errorf("%s: %s is %T, real engines write %T", name, key, got[key], value)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d fields, real engines write %d: %v", name, len(got), len(want), got)
		}
		if id := got["remote_request_id"].(string); !regexp.MustCompile(`^chatcmpl-r1-[0-9a-f]{8}$`).MatchString(id) {
			t.Errorf("%s: remote_request_id %q", name, id)
		}
	}
}

func TestADecodeWorkerReportsTheCachedTokensOfThePrefillWorker(t *testing.T) {
	prefill, decode := pair(t, NIXL, nil)
	for turn, want := range []int{0, 64} {
		params, answer := prefillLeg(t, prefill, chatPath, chatOfWords)
		if turn == 1 {
			want = cached(answer)
			if want == 0 {
				t.Fatal("the prefill worker found nothing in its cache")
			}
		}
		if got := cached(whole(t, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": params}))); got != want {
			t.Errorf("turn %d: cached_tokens %d, want %d", turn, got, want)
		}
	}
}

func cached(answer object) int {
	return int(answer["usage"].(object)["prompt_tokens_details"].(object)["cached_tokens"].(float64))
}

func TestALeaseEndsByItselfIfNoEngineReadsTheBlocks(t *testing.T) {
	prefill, decode := pair(t, NIXL, func(_ Role, c *Config) { c.Transfer.Lease = 60 * time.Millisecond })
	params, _ := prefillLeg(t, prefill, chatPath, chatOfWords)
	if prefill.held() == 0 {
		t.Fatal("no block is held")
	}
	testenv.Until(t, "the lease ends", func() bool { return prefill.held() == 0 })
	if n, _ := metricOf(t, prefill, "vllm:nixl_num_kv_expired_reqs_total"); n != 1 {
		t.Errorf("%g leases expired, want 1", n)
	}
	// The blocks are still there, so the answer is right, as with a real engine.
	whole(t, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": params}))
	if n, _ := metricOf(t, prefill, "vllm:nixl_num_notifications_after_expiry_total"); n != 1 {
		t.Errorf("%g late notices, want 1", n)
	}
}

func TestABlockThatWasUsedAgainAfterTheLeaseMakesTheAnswerWrong(t *testing.T) {
	prefill, decode := pair(t, NIXL, func(role Role, c *Config) {
		c.Transfer.Lease = 10 * time.Millisecond
		if role == Prefill {
			c.Blocks = 64
		}
	})
	alone := start(t, nil)
	want := textOf(t, whole(t, alone, chatPath, chatOfWords))
	params, _ := prefillLeg(t, prefill, chatPath, chatOfWords)
	testenv.Until(t, "the lease ends", func() bool { return prefill.held() == 0 })
	whole(t, prefill, "/v1/completions", object{"model": "mock", "prompt": make([]int, 900), "max_tokens": 1})
	if got := textOf(t, whole(t, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": params}))); got == want {
		t.Error("the answer is right although other blocks were read")
	}
}

func TestAWrongRequestIDLeavesTheLeaseToItsEnd(t *testing.T) {
	prefill, decode := pair(t, NIXL, nil)
	params, _ := prefillLeg(t, prefill, chatPath, chatOfWords)
	whole(t, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": with(params, object{"remote_request_id": "nobody"})}))
	if prefill.held() == 0 {
		t.Error("the lease of another request has ended")
	}
}

func TestATransferThatFailsIsAnErrorOrIsComputedAgain(t *testing.T) {
	for _, recompute := range []bool{false, true} {
		prefill, decode := pair(t, NIXL, func(_ Role, c *Config) { c.Transfer.Recompute = recompute })
		for name, wrong := range map[string]object{
			"engine": {"remote_engine_id": "00000000-0000-0000-0000-000000000000"},
			"port":   {"remote_port": 1},
		} {
			params, _ := prefillLeg(t, prefill, chatPath, chatOfWords)
			body := with(chatOfWords, object{"kv_transfer_params": with(params, wrong)})
			status, data := call(t, decode, chatPath, body)
			if want := map[bool]int{false: 500, true: 200}[recompute]; status != want {
				t.Errorf("wrong %s, recompute %v: status %d, want %d: %s", name, recompute, status, want, data)
			}
			status, data = call(t, decode, chatPath, with(body, object{"stream": true}))
			if status != http.StatusOK || strings.Contains(string(data), `"Internal server error"`) == recompute {
				t.Errorf("wrong %s, recompute %v, streamed: status %d: %.200s", name, recompute, status, data)
			}
			if n := decode.held(); n != 0 {
				t.Errorf("wrong %s: the decode worker holds %d blocks", name, n)
			}
		}
	}
}

func TestParametersWithoutAnAddressHangAndThenKillTheEngine(t *testing.T) {
	prefill, decode := pair(t, NIXL, nil)
	params, _ := prefillLeg(t, prefill, chatPath, chatOfWords)
	delete(params, "remote_host")
	ctx, cancel := context.WithCancel(t.Context())
	ended := post(t, ctx, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": params}))
	testenv.Until(t, "the request waits", func() bool { return decode.Stats().Ranks[0].Awaiting == 1 })
	cancel()
	<-ended
	testenv.Until(t, "the engine dies", func() bool { status, _ := call(t, decode, "/health", nil); return status == 503 })
}

func TestATransferTakesTheTimeOfTheLink(t *testing.T) {
	prefill, decode := pair(t, NIXL, func(role Role, c *Config) {
		c.Speed, c.Transfer.KVBytes = 1000, 1e6
		c.Transfer.GBs = map[Role]float64{Prefill: 0.005, Decode: 1}[role] // 5 MB/s × 1000
	})
	params, _ := prefillLeg(t, prefill, chatPath, chatOfWords)
	began := time.Now()
	whole(t, decode, chatPath, with(chatOfWords, object{"max_tokens": 1, "kv_transfer_params": params}))
	wire := time.Duration(params["remote_num_tokens"].(float64) * 1e6 / 5e9 * float64(time.Second))
	if took := time.Since(began); took < wire {
		t.Errorf("the decode leg took %v, the transfer alone takes %v", took, wire)
	}
	if seconds, _ := metricOf(t, decode, "vllm:nixl_xfer_time_seconds_sum"); seconds < wire.Seconds() {
		t.Errorf("transfer of %g s is reported, want at least %v", seconds, wire)
	}
}

func TestIdsOfThePrefillLegReplaceTheMessagesOfTheDecodeLeg(t *testing.T) {
	prefill, decode := pair(t, NIXL, nil)
	params, answer := prefillLeg(t, prefill, chatPath, chatOfWords)
	ids := answer["prompt_token_ids"].([]any)
	body := with(chatOfWords, object{"messages": []any{object{"role": "user", "content": ""}},
		"kv_transfer_params": with(params, object{"prompt_token_ids": ids})})
	got := whole(t, decode, chatPath, body)
	if n := int(got["usage"].(object)["prompt_tokens"].(float64)); n != len(ids) {
		t.Errorf("prompt of %d tokens, want the %d tokens of the ids", n, len(ids))
	}
	if want := textOf(t, whole(t, start(t, nil), chatPath, chatOfWords)); textOf(t, got) != want {
		t.Errorf("answer %q, want %q", textOf(t, got), want)
	}
	body["kv_transfer_params"] = object{"prompt_token_ids": []any{"x"}}
	if status, data := call(t, decode, chatPath, body); status != 400 || !strings.Contains(string(data), "prompt_token_ids") {
		t.Errorf("ids that are none: status %d: %s", status, data)
	}
	if status, data := call(t, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": 3})); status != 400 {
		t.Errorf("parameters that are no object: status %d: %s", status, data)
	}
}

func TestOnlyTheMetricsTellTheRoleOfAVLLM(t *testing.T) {
	prefill, decode := pair(t, NIXL, nil)
	plain := start(t, nil)
	for _, c := range []struct {
		s           *Server
		nixl, fetch bool
	}{{prefill, true, false}, {decode, true, true}, {plain, false, false}} {
		_, nixl := metricOf(t, c.s, "vllm:nixl_num_kv_expired_reqs_total")
		_, fetch := metricOf(t, c.s, "vllm:num_requests_kv_fetch_by_stage")
		if nixl != c.nixl || fetch != c.fetch {
			t.Errorf("metrics of NIXL %v, of fetches %v; want %v, %v", nixl, fetch, c.nixl, c.fetch)
		}
	}
}

func TestTheNextTurnsPrefillReadsWhatTheDecodeWorkerMade(t *testing.T) {
	prefill, decode := pair(t, NIXL, func(_ Role, c *Config) { c.Transfer.Bidirectional = true })
	body := with(chatOfWords, object{"max_tokens": 120, "ignore_eos": true})
	params, _ := prefillLeg(t, prefill, chatPath, body)
	answer := whole(t, decode, chatPath, with(body, object{"kv_transfer_params": params}))
	kept := answer["kv_transfer_params"].(object)
	if kept["do_remote_decode"] != true || kept["remote_blocks_expiry_time"] == nil || decode.held() == 0 {
		t.Fatalf("the decode worker keeps nothing: %v, %d blocks", kept, decode.held())
	}
	turns := append(slices.Clone(body["messages"].([]any)), object{"role": "assistant", "content": textOf(t, answer)},
		object{"role": "user", "content": "and now?"})
	next := with(body, object{"messages": turns, "kv_transfer_params": kept})
	before, _ := metricOf(t, prefill, "vllm:external_prefix_cache_hits_total")
	params, _ = prefillLeg(t, prefill, chatPath, next)
	after, _ := metricOf(t, prefill, "vllm:external_prefix_cache_hits_total")
	if after-before < 64 {
		t.Errorf("the prefill worker read %g tokens of the decode worker", after-before)
	}
	if decode.held() != 0 {
		t.Errorf("the decode worker still holds %d blocks", decode.held())
	}
	next["kv_transfer_params"] = params
	whole(t, decode, chatPath, next)
	if prefill.held() != 0 {
		t.Errorf("the prefill worker still holds %d blocks", prefill.held())
	}
	// The time of the kept blocks is over: the prefill leg fails, as with a real engine.
	kept["remote_blocks_expiry_time"] = 1.0
	late := with(next, object{"messages": []any{object{"role": "user", "content": strings.Repeat("new ", 200)}}, "max_tokens": 1,
		"kv_transfer_params": kept})
	if status, data := call(t, prefill, chatPath, late); status != http.StatusInternalServerError {
		t.Errorf("status %d: %s", status, data)
	}
}

func TestTheFaultsOfATransfer(t *testing.T) {
	prefill, decode := pair(t, NIXL, nil)
	params := func() object {
		p, _ := prefillLeg(t, prefill, chatPath, chatOfWords)
		return object{"kv_transfer_params": p}
	}
	fault(t, prefill, object{"kind": "prefill_errors", "share": 1})
	if status, _ := call(t, prefill, chatPath, with(chatOfWords, object{"kv_transfer_params": object{"do_remote_decode": true}})); status != 500 {
		t.Errorf("prefill_errors: status %d", status)
	}
	fault(t, prefill, object{"kind": "clear"})
	fault(t, decode, object{"kind": "refuse_decode", "share": 1})
	if status, _ := call(t, decode, chatPath, with(chatOfWords, params())); status != 503 {
		t.Errorf("refuse_decode: status %d", status)
	}
	fault(t, decode, object{"kind": "clear"})
	fault(t, prefill, object{"kind": "lease", "delay": "1ms"})
	p := params()
	testenv.Until(t, "the lease ends", func() bool { _, n := prefill.life.exchange.stats(); return n <= 1 })
	whole(t, decode, chatPath, with(chatOfWords, p))
	fault(t, prefill, object{"kind": "clear"})

	fault(t, prefill, object{"kind": "hold_transfer"})
	decode.ResetPrefixCache()
	ended := post(t, t.Context(), decode, chatPath, with(chatOfWords, params()))
	testenv.Until(t, "the transfer has begun", func() bool { return decode.Stats().Ranks[0].Awaiting == 1 })
	select {
	case got := <-ended:
		t.Errorf("hold_transfer: the answer came, status %d", got.status)
	default:
	}
	fault(t, prefill, object{"kind": "hold_transfer", "on": false})
	if got := <-ended; got.status != http.StatusOK {
		t.Errorf("after hold_transfer: status %d", got.status)
	}

	decode.ResetPrefixCache()
	p = params()
	fault(t, prefill, object{"kind": "die_in_transfer", "down": "0s"})
	if status, data := call(t, decode, chatPath, with(chatOfWords, p)); status != http.StatusInternalServerError {
		t.Errorf("die_in_transfer: status %d: %s", status, data)
	}
	testenv.Until(t, "the prefill worker is back", func() bool { return prefill.Stats().Starts == 2 && answers(t, prefill) })
	fault(t, prefill, object{"kind": "die_after_prefill"})
	p = params()
	testenv.Until(t, "the prefill worker is dead", func() bool { return !answers(t, prefill) })
	if status, data := call(t, decode, chatPath, with(chatOfWords, p)); status != http.StatusInternalServerError {
		t.Errorf("die_after_prefill: status %d: %s", status, data)
	}
}

func TestARefusedDecodeEndsTheLeaseWithTheEnginesNextStep(t *testing.T) {
	prefill, decode := pair(t, NIXL, nil)
	params, _ := prefillLeg(t, prefill, chatPath, chatOfWords)
	if status, _ := call(t, decode, chatPath, with(chatOfWords, object{"n": 0, "kv_transfer_params": params})); status != 400 {
		t.Fatalf("status %d", status)
	}
	if prefill.held() == 0 {
		t.Error("the lease has ended before the decode worker made a step")
	}
	whole(t, decode, chatPath, anyChat)
	testenv.Until(t, "the lease ends", func() bool { return prefill.held() == 0 })
}

func TestARequestWaitsForRoomThatLeasesTake(t *testing.T) {
	prefill, decode := pair(t, NIXL, func(role Role, c *Config) {
		if role == Prefill {
			c.Blocks = 40
		}
	})
	params, _ := prefillLeg(t, prefill, chatPath, chatOfWords)
	ended := post(t, t.Context(), prefill, "/v1/completions", object{"model": "mock", "prompt": make([]int, 600), "max_tokens": 1})
	testenv.Until(t, "the request waits", func() bool { return prefill.Stats().Ranks[0].Waiting == 1 })
	whole(t, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": params}))
	if got := <-ended; got.status != http.StatusOK {
		t.Errorf("status %d", got.status)
	}
}

func TestBlocksOfAnotherPromptMakeTheAnswerWrong(t *testing.T) {
	prefill, decode := pair(t, NIXL, nil)
	want := textOf(t, whole(t, start(t, nil), chatPath, chatOfWords))
	other := with(chatOfWords, object{"messages": []any{object{"role": "user", "content": strings.Repeat("all other words here now ", 50)}}})
	params, _ := prefillLeg(t, prefill, chatPath, other)
	if got := textOf(t, whole(t, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": params}))); got == want {
		t.Error("the answer is right although another prompt's blocks were read")
	}
}

func TestAPartOfTheKeptBlocksCanBeReadIfTheListIsAsLong(t *testing.T) {
	prefill, decode := pair(t, NIXL, func(_ Role, c *Config) { c.Transfer.Bidirectional = true })
	want := textOf(t, whole(t, start(t, nil), chatPath, chatOfWords))
	kept := func() object {
		params, _ := prefillLeg(t, prefill, chatPath, chatOfWords)
		decode.ResetPrefixCache()
		prefill.ResetPrefixCache()
		return whole(t, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": params}))["kv_transfer_params"].(object)
	}
	for _, long := range []int{5, 6} {
		k := kept()
		blocks := k["remote_block_ids"].([]any)[0].([]any)
		part := with(k, object{"remote_num_tokens": 80, "remote_block_ids": []any{blocks[:long]}})
		prefill.ResetPrefixCache()
		params, _ := prefillLeg(t, prefill, chatPath, with(chatOfWords, object{"kv_transfer_params": part}))
		stale := prefill.life.exchange.transfer.stale
		if (stale > 0) != (long > 5) {
			t.Errorf("%d blocks in the list: %d reads brought other blocks", long, stale)
		}
		if got := textOf(t, whole(t, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": params}))); got != want {
			t.Errorf("answer %q, want %q", got, want)
		}
	}
}

func TestTooFewBlockIDsKillTheDecodeEngine(t *testing.T) {
	for _, blocks := range []any{[]any{}, []any{[]any{1, 2}}} {
		prefill, decode := pair(t, NIXL, nil)
		params, _ := prefillLeg(t, prefill, chatPath, chatOfWords)
		status, data := call(t, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": with(params, object{"remote_block_ids": blocks})}))
		if status != http.StatusInternalServerError || !strings.Contains(string(data), deadMessage) {
			t.Errorf("status %d: %s", status, data)
		}
		if status, _ := call(t, decode, "/health", nil); status != http.StatusServiceUnavailable {
			t.Errorf("/health answers %d", status)
		}
	}
}

func TestNoBlockStaysPinnedAfterManyRequestsWhoseClientsLeave(t *testing.T) {
	for _, connector := range []Connector{NIXL, NIXLPush, Mooncake, P2P} {
		prefill, decode := pair(t, connector, func(_ Role, c *Config) {
			c.Speed, c.Transfer.GBs, c.Transfer.Lease = 500, 64, 3*time.Second
		})
		random := rand.New(rand.NewPCG(1, 2))
		work := make(chan struct{}, 8)
		var done sync.WaitGroup
		for i := range 100 {
			work <- struct{}{}
			id := fmt.Sprint("R", i)
			first, second := object{"do_remote_decode": true}, object(nil)
			if connector != NIXL {
				first, second = twoLegs(t, connector, prefill)
				for _, params := range []object{first, second} {
					for key, value := range map[string]any{"transfer_id": id, "remote_request_id": "chatcmpl-" + id} {
						if params[key] != nil {
							params[key] = value
						}
					}
					for _, role := range []string{"remote_decoder", "remote_prefiller"} {
						if source, ok := params[role].(object); ok {
							params[role] = with(source, object{"kv_request_id": id})
						}
					}
				}
			}
			patience := time.Duration(random.Int64N(int64(40 * time.Millisecond)))
			done.Go(func() {
				defer func() { <-work }()
				params, _ := prefillLeg(t, prefill, chatPath, with(chatOfWords, object{"kv_transfer_params": first}), "X-Request-Id", id)
				if connector == NIXL {
					second = params
				}
				ctx, leave := context.WithTimeout(t.Context(), patience)
				defer leave()
				<-post(t, ctx, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": second}))
			})
		}
		done.Wait()
		testenv.Until(t, "no block is held", func() bool { return prefill.held() == 0 && decode.held() == 0 })
		if s := decode.Stats().Ranks[0]; s.Running != 0 || s.Waiting != 0 {
			t.Errorf("%s: %d requests run, %d wait", connector, s.Running, s.Waiting)
		}
	}
}

func TestEachRankHasAnEngineIDAndAPortOfItsOwn(t *testing.T) {
	prefill, decode := pair(t, NIXL, func(_ Role, c *Config) { c.Ranks = 2 })
	_, base := hostAndPort(t, prefill)
	for rank := range 2 {
		params, _ := prefillLeg(t, prefill, chatPath, chatOfWords, "X-Data-Parallel-Rank", strconv.Itoa(rank))
		if id := params["remote_engine_id"].(string); !strings.HasSuffix(id, fmt.Sprint("_dp", rank)) || params["remote_port"] != float64(base+rank) {
			t.Errorf("rank %d: engine %s at port %v, the first rank is at %d", rank, id, params["remote_port"], base)
		}
		whole(t, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": params}), "X-Data-Parallel-Rank", strconv.Itoa(rank))
		if n := prefill.Stats().Ranks[rank].UsedBlocks; n != 0 {
			t.Errorf("rank %d holds %d blocks", rank, n)
		}
	}
	if err := prefill.Restart(0); err != nil {
		t.Fatal(err)
	}
	testenv.Until(t, "the engine answers", func() bool { return answers(t, prefill) })
	if _, port := hostAndPort(t, prefill); port != base {
		t.Errorf("after the restart the side channel is at port %d, was %d", port, base)
	}
}

func TestOnlyTheDevelopmentModeNamesConnectorAndRole(t *testing.T) {
	if status, _ := call(t, start(t, nil), "/server_info", nil); status != http.StatusNotFound {
		t.Errorf("without the development mode: status %d", status)
	}
	for connector, name := range kvConnectors {
		s := start(t, func(c *Config) { c.DevMode, c.Transfer.Connector, c.Transfer.Role = true, connector, Decode })
		info := fetched(t, s, "/server_info?config_format=json")["vllm_config"].(object)["kv_transfer_config"].(object)
		if info["kv_connector"] != name || info["kv_role"] != "kv_consumer" || info["engine_id"] != s.life.exchange.name {
			t.Errorf("%s: %v", connector, info)
		}
	}
}
