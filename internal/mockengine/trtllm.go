package mockengine

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/valyala/fastjson"
)

// This file imitates the context-first disaggregation of TensorRT-LLM (tensorrt_llm/serve/openai_disagg_service.py,
// openai_protocol.py: DisaggregatedParams): the context server computes the prompt and the first token, and says in
// each choice where the blocks are; the generation server gets this in its request. No TensorRT-LLM has been seen on
// the wire here.

// disaggregated has the disaggregated_params of a request.
type disaggregated struct {
	context bool // context_only; otherwise generation_only
	id      string
	ctxID   string // generation_only: ctx_request_id
	opaque  string // generation_only: encoded_opaque_state; here the address of the side channel
}

// readDisaggregated reads the disaggregated_params of a request, and the ids that take the place of a chat's messages.
func (g *generation) readDisaggregated(body *fastjson.Value) error {
	if ids := body.GetArray("prompt_token_ids"); g.chat && len(ids) > 0 {
		tokens, err := tokenList(ids)
		if err != nil {
			return fmt.Errorf("prompt_token_ids: %w", err)
		}
		g.prompts[0].tokens = tokens
	}
	if !given(body, "disaggregated_params") {
		return nil
	}
	v := body.Get("disaggregated_params")
	d := &disaggregated{}
	switch kind := text(v, "request_type"); kind {
	case "context_only":
		d.context, d.id = true, numberText(v.Get("disagg_request_id"))
	case "generation_only":
		d.ctxID, d.opaque = numberText(v.Get("ctx_request_id")), text(v, "encoded_opaque_state")
		if d.ctxID == "" || len(v.GetArray("first_gen_tokens")) == 0 {
			return errors.New("disaggregated_params: generation_only needs ctx_request_id and first_gen_tokens")
		}
	case "context_and_generation":
		return nil
	default:
		return fmt.Errorf("disaggregated_params: unknown request_type %q", kind)
	}
	if len(g.prompts)*g.choices > 1 {
		return errors.New("disaggregated_params: one prompt and one choice at a time")
	}
	g.disaggregated = d
	return nil
}

// numberText returns the digits of a JSON number, or "". Ids have 63 bits, which a float does not hold.
func numberText(v *fastjson.Value) string {
	if v == nil || v.Type() != fastjson.TypeNumber {
		return ""
	}
	return v.String()
}

// prepareDisaggregated sets what the engine model must know about the part.
func (x *run) prepareDisaggregated(p *part) {
	d := x.disaggregated
	if d == nil {
		return
	}
	if !d.context {
		p.request.Await, p.request.Received = true, len(p.request.Prompt)
		return
	}
	if d.id == "" {
		d.id = strconv.FormatUint(x.life.salt<<32|x.life.next.Add(1), 10)
	}
	p.progress.leaseKey, p.progress.mode = "trtllm "+d.id, "trtllm"
	if p.answer.reason == "stop" && len(p.answer.tokens) == 1 { // the first token ends the answer: nothing is kept
		p.progress.leaseKey, p.progress.mode = "", ""
		return
	}
	p.answer.tokens = p.answer.tokens[:1]
	p.answer.text, p.answer.call, p.answer.reason, p.answer.stop = min(p.answer.text, 1), nil, "length", ""
	p.request.Output, p.request.Pin = p.answer.tokens, true
}

// appendDisaggregated appends the disaggregated_params of a context server's answer.
func (x *exchange) appendDisaggregated(dst []byte, r *rank, p *progress, first uint32) []byte {
	id := strings.TrimPrefix(p.leaseKey, "trtllm ")
	state := base64.StdEncoding.EncodeToString([]byte(address(x.host, x.port)))
	return fmt.Appendf(dst, `{"request_type":"context_only","first_gen_tokens":[%d],"ctx_request_id":%s,"encoded_opaque_state":%q,`+
		`"draft_tokens":null,"disagg_request_id":%s,"ctx_dp_rank":%d}`, first, id, state, id, r.id)
}

// contextServer returns the address of the side channel in an opaque state.
func (d *disaggregated) contextServer() (string, error) {
	raw, err := base64.StdEncoding.DecodeString(d.opaque)
	if err != nil || !strings.HasPrefix(string(raw), "http://") {
		return "", errors.New("encoded_opaque_state is not that of a mock engine")
	}
	return string(raw), nil
}
