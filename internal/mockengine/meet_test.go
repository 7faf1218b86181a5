package mockengine

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/test/testenv"
)

// hostAndPort returns the side channel of an engine as the fields of parameters have it.
func hostAndPort(t *testing.T, s *Server) (host string, port int) {
	t.Helper()
	host, digits, _ := strings.Cut(s.SideChannel(), ":")
	port, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

// twoLegs returns the parameters of both legs of a request whose id is R, for a connector whose legs are sent at once.
func twoLegs(t *testing.T, connector Connector, prefill *Server) (first, second object) {
	t.Helper()
	host, port := hostAndPort(t, prefill)
	engineID := prefill.life.exchange.engineID(0)
	switch connector {
	case NIXLPush:
		return object{"do_remote_decode": true, "do_remote_prefill": false}, object{"do_remote_prefill": true,
			"do_remote_decode": false, "remote_engine_id": engineID, "remote_request_id": "chatcmpl-R", "remote_host": host,
			"remote_port": port, "tp_size": 1, "pp_size": 1}
	case Mooncake:
		return object{"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": "xfer-R"}, object{
			"do_remote_prefill": true, "do_remote_decode": false, "transfer_id": "xfer-R",
			"remote_bootstrap_addr": "http://" + prefill.SideChannel(), "remote_engine_id": engineID}
	}
	return object{"remote_decoder": object{"kv_request_id": "R"}},
		object{"remote_prefiller": object{"kv_request_id": "R", "remote_host": host, "remote_port": port}}
}

var meetings = []Connector{NIXLPush, Mooncake, P2P}

func TestTheLegsOfAVLLMThatAreSentAtOnceMeetWhicheverComesFirst(t *testing.T) {
	want := textOf(t, whole(t, start(t, nil), chatPath, with(chatOfWords, object{"max_tokens": 20})))
	for _, connector := range meetings {
		prefill, decode := pair(t, connector, nil)
		first, second := twoLegs(t, connector, prefill)
		for _, order := range []string{"decode first", "prefill first"} {
			decode.ResetPrefixCache()
			legs := func() object {
				params, _ := prefillLeg(t, prefill, chatPath, with(chatOfWords, object{"kv_transfer_params": first}), "X-Request-Id", "R")
				return params
			}
			if order == "prefill first" {
				if params := legs(); (params != nil) != (connector == NIXLPush) {
					t.Errorf("%s: parameters %v in the answer of the prefill leg", connector, params)
				} else if params != nil && params["transfer_mode"] != "push" {
					t.Errorf("transfer_mode %v", params["transfer_mode"])
				}
				if prefill.held() == 0 {
					t.Errorf("%s: no block waits for the decode worker", connector)
				}
			}
			before, _ := metricOf(t, decode, "vllm:external_prefix_cache_hits_total")
			ended := post(t, t.Context(), decode, chatPath, with(chatOfWords, object{"max_tokens": 20, "kv_transfer_params": second}))
			if order == "decode first" {
				testenv.Until(t, "the decode leg waits", func() bool { return decode.Stats().Ranks[0].Awaiting == 1 })
				legs()
			}
			if got := (<-ended).text(t); got != want {
				t.Errorf("%s, %s: answer %q, want %q", connector, order, got, want)
			}
			if after, _ := metricOf(t, decode, "vllm:external_prefix_cache_hits_total"); after-before < 200 {
				t.Errorf("%s, %s: %g tokens came", connector, order, after-before)
			}
			testenv.Until(t, "no block is held", func() bool { return prefill.held() == 0 && decode.held() == 0 })
		}
	}
}

// rooms returns how many transfers are known at a prefill worker, by one of their legs at least.
func (s *Server) rooms() int {
	x := s.current().exchange
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.rooms)
}

func TestADecodeLegWithoutItsPrefillLegHoldsItsBlocksUntilThePrefillLegComes(t *testing.T) {
	for _, connector := range meetings {
		prefill, decode := pair(t, connector, nil)
		first, second := twoLegs(t, connector, prefill)
		ctx, leave := context.WithCancel(t.Context())
		ended := post(t, ctx, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": second}))
		testenv.Until(t, "the decode leg waits at the prefill worker", func() bool { return prefill.rooms() > 0 })
		leave()
		<-ended
		testenv.Until(t, "the client has left", func() bool { return decode.life.active.Load() == 0 })
		if decode.held() == 0 {
			t.Errorf("%s: the blocks are free although a transfer may write into them", connector)
		}
		prefillLeg(t, prefill, chatPath, with(chatOfWords, object{"kv_transfer_params": first}), "X-Request-Id", "R")
		testenv.Until(t, "no block is held", func() bool { return prefill.held() == 0 && decode.held() == 0 })
	}
}

func TestADeadPrefillWorkerFailsItsPartnersOrLetsThemCompute(t *testing.T) {
	for _, connector := range meetings {
		prefill, decode := pair(t, connector, nil)
		_, second := twoLegs(t, connector, prefill)
		ended := post(t, t.Context(), decode, chatPath, with(chatOfWords, object{"kv_transfer_params": second}))
		testenv.Until(t, "the decode leg waits", func() bool { return decode.Stats().Ranks[0].Awaiting == 1 })
		if err := prefill.Die(); err != nil {
			t.Fatal(err)
		}
		want := http.StatusInternalServerError
		if connector == P2P {
			want = http.StatusOK
		}
		if a := <-ended; a.status != want {
			t.Errorf("%s: status %d, want %d: %s", connector, a.status, want, a.data)
		}
		if decode.held() != 0 {
			t.Errorf("%s: %d blocks are held", connector, decode.held())
		}
	}
}

func TestLeasesOfMeetingsEnd(t *testing.T) {
	for _, connector := range meetings {
		prefill, _ := pair(t, connector, func(_ Role, c *Config) { c.Transfer.Lease = 20 * time.Millisecond })
		first, _ := twoLegs(t, connector, prefill)
		prefillLeg(t, prefill, chatPath, with(chatOfWords, object{"kv_transfer_params": first}))
		testenv.Until(t, "the lease ends", func() bool { return prefill.held() == 0 })
	}
}

func TestMooncakeWithWrongParametersFailsOrWaits(t *testing.T) {
	prefill, decode := pair(t, Mooncake, nil)
	first, second := twoLegs(t, Mooncake, prefill)
	for name, wrong := range map[string]object{
		"engine":    {"remote_engine_id": "another"},
		"bootstrap": {"remote_bootstrap_addr": "http://127.0.0.1:1"},
	} {
		if a := <-post(t, t.Context(), decode, chatPath, with(chatOfWords, object{"kv_transfer_params": with(second, wrong)})); a.status != http.StatusInternalServerError {
			t.Errorf("wrong %s: %+v", name, a)
		}
	}
	// An answer that ends by itself is not transferred, nor is a request without an id.
	for _, body := range []object{
		with(chatOfWords, object{"kv_transfer_params": object{"do_remote_decode": true}, "max_tokens": 1}),
		with(chatOfWords, object{"kv_transfer_params": first, "mock_answer": nil, "max_tokens": 4000}),
	} {
		whole(t, prefill, chatPath, body)
		if prefill.held() != 0 {
			t.Errorf("%d blocks wait for a decode worker", prefill.held())
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	delete(second, "transfer_id")
	ended := post(t, ctx, decode, chatPath, with(chatOfWords, object{"kv_transfer_params": second}))
	testenv.Until(t, "the request waits", func() bool { return decode.Stats().Ranks[0].Awaiting == 1 })
	leave()
	<-ended
	whole(t, decode, chatPath, anyChat)
	<-post(t, t.Context(), prefill, chatPath, with(chatOfWords, object{"kv_transfer_params": object{"do_remote_prefill": true}}))
	testenv.Until(t, "the prefill worker dies of the decode leg", func() bool { status, _ := call(t, prefill, "/health", nil); return status == 503 })
}

func TestMooncakesBootstrapServerAnswersAsTheEnginesOwn(t *testing.T) {
	prefill, _ := pair(t, Mooncake, func(_ Role, c *Config) { c.Ranks = 2 })
	// The answer of vLLM 0.32's MooncakeBootstrapServer (mooncake_utils.py) with two ranks; the first has two workers.
	data, err := os.ReadFile("testdata/mooncake_query.json")
	if err != nil {
		t.Fatal(err)
	}
	var want, got map[string]struct {
		EngineID string                       `json:"engine_id"`
		Workers  map[string]map[string]string `json:"worker_addr"`
	}
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	_, answer := call(t, &Server{addr: prefill.SideChannel()}, "/query", nil)
	if err := json.Unmarshal(answer, &got); err != nil {
		t.Fatal(err)
	}
	for rank, real := range want {
		mine := got[rank]
		if !strings.HasSuffix(real.EngineID, "_dp"+rank) || !strings.HasSuffix(mine.EngineID, "_dp"+rank) {
			t.Errorf("rank %s: engine %q, real engines have %q", rank, mine.EngineID, real.EngineID)
		}
		if !strings.HasPrefix(real.Workers["0"]["0"], "tcp://") || mine.Workers["0"]["0"] != "tcp://"+prefill.SideChannel() {
			t.Errorf("rank %s: workers %v, real engines have %v", rank, mine.Workers, real.Workers)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d ranks, want %d", len(got), len(want))
	}
}

func TestAWorkerFetchesWhatAnotherHasAndComputesTheRest(t *testing.T) {
	source, worker := pair(t, P2P, nil)
	whole(t, source, chatPath, chatOfWords)
	host, port := hostAndPort(t, source)
	longer := object{"model": "mock", "temperature": 0, "messages": append(slices.Clone(chatOfWords["messages"].([]any)),
		object{"role": "assistant", "content": "yes"}, object{"role": "user", "content": strings.Repeat("and more ", 40)})}
	want := textOf(t, whole(t, start(t, nil), chatPath, longer))
	from := func(port int) object {
		return with(longer, object{"kv_transfer_params": object{"remote_kv_source": object{"kv_request_id": "f1", "remote_host": host, "remote_port": port}}})
	}
	answer := whole(t, worker, chatPath, from(port))
	tokens := int(answer["usage"].(object)["prompt_tokens"].(float64))
	if n := cached(answer); n < 200 || n > tokens-50 || textOf(t, answer) != want {
		t.Errorf("%d of %d tokens came; answer %q, want %q", n, tokens, textOf(t, answer), want)
	}
	worker.ResetPrefixCache()
	if answer := whole(t, worker, chatPath, from(1)); cached(answer) != 0 || textOf(t, answer) != want {
		t.Errorf("from a dead source: %d tokens came; answer %q, want %q", cached(answer), textOf(t, answer), want)
	}
}

func TestEnginesWithASharedStoreTakeFromItWhatTheyLack(t *testing.T) {
	prefill := start(t, func(c *Config) { c.Transfer.Connector, c.Transfer.Role = Shared, Prefill })
	decode := start(t, func(c *Config) {
		c.Transfer.Connector, c.Transfer.Role, c.Transfer.Store = Shared, Decode, prefill.SideChannel()
	})
	want := textOf(t, whole(t, start(t, nil), chatPath, chatOfWords))
	whole(t, prefill, chatPath, with(chatOfWords, object{"max_tokens": 1}))
	answer := whole(t, decode, chatPath, chatOfWords)
	if cached(answer) < 200 || textOf(t, answer) != want {
		t.Errorf("%d tokens came from the store; answer %q, want %q", cached(answer), textOf(t, answer), want)
	}
	if !contains(decode.CachedHashes(0, block.TierGPU), prefill.CachedHashes(0, block.TierGPU)) {
		t.Error("the decode worker lacks blocks of the prefill worker")
	}
	if err := prefill.Die(); err != nil {
		t.Fatal(err)
	}
	decode.ResetPrefixCache()
	if answer := whole(t, decode, chatPath, chatOfWords); cached(answer) != 0 || textOf(t, answer) != want {
		t.Errorf("without the store: %d tokens came; answer %q, want %q", cached(answer), textOf(t, answer), want)
	}
}
