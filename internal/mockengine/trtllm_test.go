package mockengine

import (
	"net/http"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

func TestAContextServerHandsAPromptToAGenerationServer(t *testing.T) {
	alone := start(t, nil)
	for path, body := range map[string]object{chatPath: chatOfWords, "/v1/completions": completionOfWords} {
		want := textOf(t, whole(t, alone, path, with(body, object{"max_tokens": 20})))
		prefill, decode := pair(t, TRTLLM, nil)
		first := whole(t, prefill, path, with(body, object{"max_tokens": 20,
			"disaggregated_params": object{"request_type": "context_only", "disagg_request_id": int64(4611686018427387954)}}))
		choice := first["choices"].([]any)[0].(object)
		carried := choice["disaggregated_params"].(object)
		if choice["finish_reason"] != "length" || len(carried["first_gen_tokens"].([]any)) != 1 || prefill.held() == 0 {
			t.Fatalf("%s: %v, %d blocks held", path, choice, prefill.held())
		}
		ids := first["prompt_token_ids"].([]any)
		leg := with(body, object{"max_tokens": 20, "disaggregated_params": with(carried, object{"request_type": "generation_only"})})
		if path == chatPath {
			leg["messages"], leg["prompt_token_ids"] = []any{object{"role": "user", "content": ""}}, ids
		} else {
			leg["prompt"] = ids
		}
		// The answer's parameters are read again as text, because a float has no room for the id.
		leg["disaggregated_params"].(object)["ctx_request_id"] = int64(4611686018427387954)
		if got := textOf(t, whole(t, decode, path, leg)); got != want {
			t.Errorf("%s: answer %q, want %q", path, got, want)
		}
		if prefill.held() != 0 || decode.held() != 0 {
			t.Errorf("%s: %d and %d blocks are held", path, prefill.held(), decode.held())
		}
	}
}

func TestAGenerationServerWithWrongParametersAnswersWithAnError(t *testing.T) {
	_, decode := pair(t, TRTLLM, func(_ Role, c *Config) { c.Transfer.MeetTimeout = 20 * time.Millisecond })
	for want, params := range map[int]object{
		http.StatusBadRequest:          {"request_type": "generation_only"},
		http.StatusInternalServerError: {"request_type": "generation_only", "ctx_request_id": 1, "first_gen_tokens": []int{1}, "encoded_opaque_state": "AAE="},
	} {
		if status, data := call(t, decode, chatPath, with(chatOfWords, object{"disaggregated_params": params})); status != want {
			t.Errorf("%v: status %d, want %d: %s", params, status, want, data)
		}
	}
	testenv.Until(t, "no block is held", func() bool { return decode.held() == 0 })
}
