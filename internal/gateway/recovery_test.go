package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// pieces of the text that parrot generates, over and over. They cut characters in two, as the tokens of real models do.
var parrotPieces = strings.Split("na|ïv|e \xe6|\xbc|\xa2字 go| \xf0\x9f|\x98\x80 so| \"quo|te\"\n| \\ end|. The| rain in| Spa\xc3|\xb1a| st|ays ", "|")

// parrot is an engine that sends what vLLM 0.32.0 sends with return_token_ids. Each token follows from the number of
// tokens before it, so a continuation of the same ids is exact. As in vLLM, a text ends before a character that is not
// complete, and before a possible stop string; and a prompt of ids that ends inside a character makes the engine repeat
// the beginning of the character.
type parrot struct {
	mu     sync.Mutex
	loses  func(asked int) (after int, how string) // after how many chunks the answer to a request ends, and how; guarded by mu
	asked  atomic.Int64
	drift  int           // added to the number of tokens: another model
	paused chan struct{} // a frozen answer ends when this is closed
	froze  chan struct{} // receives a value for each frozen answer
	delay  time.Duration // after each chunk
	sglang bool          // send what SGLang 0.5.23 sends
	most   int           // the greatest length of an answer to a chat, as in the model's generation_config.json; 0: none
	body   atomic.Value  // the body of the last request, a []byte
	given  atomic.Int64  // the number of ids of the answer that the last request gave
	caches bool          // say how many tokens of the prompt were cached: all but one
	mute   string        // what /detokenize does: it hangs, fails, is closed, or answers nonsense; "": it answers
}

type parrotRequest struct {
	Model          string
	Messages       json.RawMessage
	Prompt         json.RawMessage
	MaxTokens      int  `json:"max_tokens"`
	ReturnTokenIDs bool `json:"return_token_ids"`
	Stop           string
	StreamOptions  struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

func (p *parrot) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if r.URL.Path == "/detokenize" && p.mute != "" {
		switch p.mute {
		case "hangs":
			<-r.Context().Done()
		case "fails":
			w.WriteHeader(http.StatusInternalServerError)
		case "closed":
			w.WriteHeader(http.StatusNotFound)
		case "nonsense":
			_, _ = io.WriteString(w, `{"prompt":"another text"}`)
		}
		return
	}
	if r.URL.Path == "/detokenize" {
		var request struct{ Tokens []int }
		_ = json.Unmarshal(body, &request)
		name := map[bool]string{false: "prompt", true: "text"}[p.sglang]
		_ = json.NewEncoder(w).Encode(map[string]string{name: strings.ToValidUTF8(parrotText(request.Tokens), "\uFFFD")})
		return
	}
	var q parrotRequest
	_ = json.Unmarshal(body, &q)
	if p.most > 0 && q.MaxTokens == 0 && strings.HasPrefix(r.URL.Path, "/v1/chat") {
		q.MaxTokens = p.most
	}
	if strings.HasSuffix(r.URL.Path, "/render") && p.most == 0 {
		w.WriteHeader(http.StatusNotFound)
		return
	} else if strings.HasSuffix(r.URL.Path, "/render") {
		_, _ = fmt.Fprintf(w, `{"token_ids":[1,2,3],"sampling_params":{"max_tokens":%d}}`, q.MaxTokens)
		return
	}
	chat := strings.HasPrefix(r.URL.Path, "/v1/chat")
	prompt := []int{1, 2, 3}
	if !chat && q.Prompt[0] == '[' {
		_ = json.Unmarshal(q.Prompt, &prompt)
	}
	p.given.Store(int64(len(prompt) - 3))
	p.body.Store(body)
	p.mu.Lock()
	after, how := -1, ""
	if p.loses != nil {
		after, how = p.loses(int(p.asked.Add(1)))
	}
	p.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	s := parrotStream{w: w, chat: chat, q: &q, id: fmt.Sprintf("id-%p", &q), prompt: prompt, caches: p.caches}
	n := 0
	for chunk := range s.chunks(p.drift) {
		if n++; after >= 0 && n > after {
			switch how {
			case "die":
				panic(http.ErrAbortHandler)
			case "error":
				_, _ = io.WriteString(w, `data: {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", "type": "InternalServerError", "param": null, "code": 500}}`+"\n\n"+doneChunk)
				return
			case "freeze", "freeze behind the header":
				if how != "freeze" {
					w.(http.Flusher).Flush()
				}
				p.froze <- struct{}{}
				select {
				case <-p.paused:
				case <-r.Context().Done():
				}
				return
			case "done":
				_, _ = io.WriteString(w, doneChunk)
				return
			case "end":
				return
			}
		}
		if p.sglang {
			chunk = strings.NewReplacer(`,"token_ids":null`, "", `,"prompt_token_ids":null`, "", "stop_reason", "matched_stop").Replace(chunk)
		}
		_, _ = io.WriteString(w, strings.Replace(chunk, `"model":"m"`, `"model":"`+q.Model+`"`, 1))
		w.(http.Flusher).Flush()
		if p.delay > 0 {
			takes(r, p.delay)
		}
	}
}

// parrotID is the id of the token behind n tokens. Behind the 3 tokens of the tests' prompts the text begins with the
// first piece: if it began within a character, no continuation of ids could have the text of the ids before it.
func parrotID(n int) int { return 100 + (n-3+len(parrotPieces))%len(parrotPieces) }

func parrotText(ids []int) string {
	var b strings.Builder
	for _, id := range ids {
		if id >= 100 {
			b.WriteString(parrotPieces[(id-100)%len(parrotPieces)])
		}
	}
	return b.String()
}

// whole cuts an incomplete character off the end of text.
func wholeCharacters(text string) string {
	for n := 1; n <= 3 && n <= len(text); n++ {
		if tail := text[len(text)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRuneInString(tail) {
				return text[:len(text)-n]
			}
			break
		}
	}
	return text
}

type parrotStream struct {
	w      io.Writer
	chat   bool
	q      *parrotRequest
	id     string
	prompt []int
	caches bool
}

func (s *parrotStream) chunks(drift int) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		before := parrotText(s.prompt)
		begin := len(wholeCharacters(before)) // the engine emits the whole of a character that the prompt begins
		if s.chat && !yield(s.chunk(`"role":"assistant","content":""`, nil, "", "", true)) {
			return
		}
		text, sent, finish := before, begin, ""
		var ids []int
		for total := 0; finish == ""; {
			ids = ids[:0]
			for range 1 + (len(s.prompt)+total)%7/6 { // now and then two tokens a chunk
				id := parrotID(len(s.prompt) + total + drift)
				ids, text = append(ids, id), text+parrotText([]int{id})
				if total++; total == s.q.MaxTokens {
					finish = "length"
					break
				}
			}
			safe := len(wholeCharacters(text))
			stop := ""
			if s.q.Stop != "" {
				if at := strings.Index(text[begin:safe], s.q.Stop); at >= 0 {
					safe, finish, stop = begin+at, "stop", s.q.Stop
				} else if finish == "" {
					for range utf8.RuneCountInString(s.q.Stop) - 1 {
						_, size := utf8.DecodeLastRuneInString(text[begin:safe])
						safe -= size
					}
				}
			}
			out := ""
			if safe > sent {
				out, sent = text[sent:safe], safe
			}
			quoted, _ := json.Marshal(out)
			if !yield(s.chunk(`"content":`+string(quoted), ids, finish, stop, total <= 2 && !s.chat)) {
				return
			}
		}
		if s.q.StreamOptions.IncludeUsage {
			n, k := len(s.prompt), s.count(text, before)
			details := ""
			if s.caches {
				details = fmt.Sprintf(`,"prompt_tokens_details":{"audio_tokens":null,"cached_tokens":%d}`, n-1)
			}
			if !yield(fmt.Sprintf(`data: {"id":%q,"object":%q,"created":%d,"model":"m","choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%s}}`+"\n\n", s.id, s.object(), len(s.id), n, n+k, k, details)) {
				return
			}
		}
		yield(doneChunk)
	}
}

// count returns the number of tokens of text behind before.
func (s *parrotStream) count(text, before string) int {
	n := 0
	for rest := len(text) - len(before); rest > 0; n++ {
		rest -= len(parrotText([]int{parrotID(len(s.prompt) + n)}))
	}
	return n
}

func (s *parrotStream) object() string {
	if s.chat {
		return "chat.completion.chunk"
	}
	return "text_completion"
}

func (s *parrotStream) chunk(delta string, ids []int, finish, stop string, first bool) string {
	list := func(ids []int, here bool) string {
		if !s.q.ReturnTokenIDs || !here {
			return "null"
		}
		text, _ := json.Marshal(ids)
		return string(text)
	}
	end := `null`
	if finish != "" {
		end = `"` + finish + `","stop_reason":null`
		if stop != "" {
			quoted, _ := json.Marshal(stop)
			end = `"` + finish + `","stop_reason":` + string(quoted)
		}
	}
	head := fmt.Sprintf(`data: {"id":%q,"object":%q,"created":%d,"model":"m","choices":[{"index":0,`, s.id, s.object(), len(s.id))
	if s.chat {
		return head + `"delta":{` + delta + `},"logprobs":null,"finish_reason":` + end + `,"token_ids":` + list(ids, len(ids) > 0) + `}],"prompt_token_ids":` + list(s.prompt, first) + "}\n\n"
	}
	return head + strings.Replace(delta, `"content"`, `"text"`, 1) + `,"logprobs":null,"finish_reason":` + end + `,"token_ids":` + list(ids, true) + `,"prompt_token_ids":` + list(s.prompt, first) + "}]}\n\n"
}

// parrots returns a gateway in front of n parrots.
func parrots(t *testing.T, n int, change func(*settings), each func(i int, p *parrot)) (*fixture, []*parrot) {
	var urls []string
	var all []*parrot
	for i := range n {
		p := &parrot{paused: make(chan struct{}), froze: make(chan struct{}, 64)}
		if each != nil {
			each(i, p)
		}
		all, urls = append(all, p), append(urls, worker(t, p.ServeHTTP))
		t.Cleanup(func() { close(p.paused) })
	}
	return serve(t, func(s *settings) {
		s.policy, s.facts.Version = "round_robin", "0.32.0"
		if change != nil {
			change(s)
		}
	}, urls...), all
}

// stream is what a client sees of a stream.
type stream struct {
	text, finish, stop string
	ids                map[string]bool // the ids of its events
	roles, failures    int
	usage              string
	done               bool
	raw                string
}

func readStream(t *testing.T, raw string) stream {
	t.Helper()
	s := stream{raw: raw, ids: map[string]bool{}}
	for event := range strings.SplitSeq(raw, "\n\n") {
		payload, is := strings.CutPrefix(event, "data: ")
		if !is || s.done {
			if event != "" {
				t.Errorf("the stream has %q", event)
			}
			continue
		}
		if payload == "[DONE]" {
			s.done = true
			continue
		}
		var e struct {
			ID      string
			Error   json.RawMessage
			Usage   json.RawMessage
			Choices []struct {
				Text         string
				Delta        struct{ Role, Content string }
				FinishReason string `json:"finish_reason"`
				StopReason   string `json:"stop_reason"`
				TokenIDs     []int  `json:"token_ids"`
			}
		}
		if err := json.Unmarshal([]byte(payload), &e); err != nil {
			t.Errorf("%v: %q", err, payload)
			continue
		}
		if e.Error != nil {
			s.failures++
			continue
		}
		s.ids[e.ID] = true
		if string(e.Usage) != "null" && e.Usage != nil {
			s.usage = string(e.Usage)
		}
		for _, c := range e.Choices {
			s.text += c.Text + c.Delta.Content
			if c.Delta.Role != "" {
				s.roles++
			}
			if s.finish != "" {
				t.Errorf("an event follows the finish_reason: %s", payload)
			}
			s.finish, s.stop = c.FinishReason, c.StopReason
			if c.TokenIDs != nil {
				t.Errorf("the client sees ids: %s", payload)
			}
		}
	}
	return s
}

func (f *fixture) stream(t *testing.T, path, body string) stream {
	t.Helper()
	resp, err := f.client.Post(f.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		raw = append(raw, "CUT "+err.Error()...)
	}
	return readStream(t, string(raw))
}

const (
	greedyChat       = `{"model":"m","stream":true,"temperature":0,"max_tokens":%d,"stop":%s,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`
	greedyCompletion = `{"model":"m","stream":true,"temperature":0,"max_tokens":%d,"stop":%s,"stream_options":{"include_usage":true},"prompt":[1,2,3]}`
)

// The client of a recovered stream sees what it would have seen without the loss: the text, one role, one id, the
// finish_reason and the usage. Workers are lost at random places, several times a stream.
func TestAStreamThatLosesItsWorkerContinuesExactly(t *testing.T) {
	healthy, _ := parrots(t, 2, nil, nil)
	random := rand.New(rand.NewPCG(1, 2))
	had, given := 0, 0 // ids that had come at the last loss, and those of them that the last continuation gave
	for round := range 300 {
		most, stop := 1+random.IntN(60), []string{"null", `"ays naïv"`, `"\" \\\\ end"`, `"😀"`, `"absent from the text"`}[random.IntN(5)]
		path, body := "/v1/chat/completions", fmt.Sprintf(greedyChat, most, stop)
		if round%2 == 0 {
			path, body = "/v1/completions", fmt.Sprintf(greedyCompletion, most, stop)
		}
		want := healthy.stream(t, path, body)
		if !want.done || want.finish == "" {
			t.Fatalf("the parrot is ill: %s", want.raw)
		}
		losses := random.IntN(3) + 1
		var mu sync.Mutex
		more := func(s *settings) { s.gateway.Attempts = 5 }
		f, all := parrots(t, 4, more, func(_ int, p *parrot) {
			p.loses = func(int) (int, string) {
				mu.Lock()
				defer mu.Unlock()
				if losses--; losses < 0 {
					return -1, ""
				}
				return random.IntN(25), []string{"die", "error", "end"}[random.IntN(3)]
			}
		})
		got := f.stream(t, path, body)
		if got.text != want.text || got.finish != want.finish || got.stop != want.stop || got.usage != want.usage || got.roles != want.roles ||
			len(got.ids) != 1 || got.failures != 0 || !got.done {
			t.Fatalf("round %d, %s\ngot  %q %s %s %s, %d roles, ids %v, %d failures\nwant %q %s %s %s\n%s", round, body,
				got.text, got.finish, got.stop, got.usage, got.roles, got.ids, got.failures, want.text, want.finish, want.stop, want.usage, got.raw)
		}
		f.idle(t)
		if rec := f.last(t, 1); len(rec.Recovered) > 0 {
			lost, n, most := rec.Recovered[len(rec.Recovered)-1], 0, int64(0)
			if _, err := fmt.Sscanf(lost[strings.LastIndex(lost, "after"):], "after %d tokens", &n); err != nil {
				t.Fatal(lost, err)
			}
			for _, p := range all {
				most = max(most, p.given.Load())
			}
			had, given = had+n, given+int(most)
		}
		_ = f.stop()
	}
	// A stop string that may have begun holds text back, and a character may be cut: so some ids are computed again.
	if given < had*3/4 {
		t.Errorf("the continuations gave %d of %d ids", given, had)
	}
}

// A client that lost no worker gets the same bytes as without the recovery.
func TestTheIdsForARecoveryAreHiddenFromTheClient(t *testing.T) {
	for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
		body := fmt.Sprintf(map[bool]string{true: greedyChat, false: greedyCompletion}[strings.Contains(path, "chat")], 30, "null")
		var seen [2]string
		for i, mode := range []string{gateway.RecoverOff, gateway.RecoverExact} {
			f, _ := parrots(t, 2, func(s *settings) { s.gateway.StreamRecovery = mode }, nil)
			seen[i] = f.stream(t, path, body).raw
		}
		if id := seen[0][10:strings.IndexByte(seen[0], ',')]; true {
			other := seen[1][10:strings.IndexByte(seen[1], ',')]
			if strings.ReplaceAll(seen[1], other, id) != seen[0] {
				t.Errorf("%s: off\n%s\nexact\n%s", path, seen[0], seen[1])
			}
		}
	}
}

// Each condition that makes a continuation wrong ends the stream with one error event and without [DONE].
func TestStreamsThatCannotContinueExactlyEndWithOneErrorEvent(t *testing.T) {
	for reason, more := range map[string][]string{
		"sampling": {`"temperature":0.7`, `"temperature":null`, `"top_p":0.5`},
		"choices":  {`"temperature":0,"n":2`, `"temperature":0,"best_of":2`},
		"penalty":  {`"temperature":0,"presence_penalty":0.5`, `"temperature":0,"frequency_penalty":1`},
		"guided": {`"temperature":0,"response_format":{"type":"json_object"}`, `"temperature":0,"guided_json":{}`,
			`"temperature":0,"structured_outputs":{"regex":"a"}`},
		"tools":  {`"temperature":0,"tools":[{"type":"function"}]`, `"temperature":0,"tool_choice":"required"`},
		"fields": {`"temperature":0,"logprobs":true`, `"temperature":0,"echo":true`, `"temperature":0,"unknown":1`, `"temperature":0,"return_token_ids":true`, `"temperature":0,"stream_options":{"continuous_usage_stats":true}`},
	} {
		for _, fields := range more {
			f, _ := parrots(t, 2, nil, func(_ int, p *parrot) {
				p.loses = func(int) (int, string) { return 5, "die" }
			})
			resp, raw := f.post(t, `{"model":"m","stream":true,"max_tokens":20,"messages":[{"role":"user","content":"hi"}],`+fields+`}`)
			if resp.StatusCode != 200 || strings.Count(raw, `data: {"error":`) != 1 || !strings.HasSuffix(raw, "}}\n\n") || strings.Contains(raw, "[DONE]") {
				t.Errorf("%s: %d %s", fields, resp.StatusCode, raw)
			}
			if want := `warmpath_stream_recoveries_total{outcome="refused",reason="` + reason + `"} 1`; !strings.Contains(f.metrics(t), want) {
				t.Errorf("%s: the metrics lack %s", fields, want)
			}
			if rec := f.last(t, 1); rec.Unrecovered != reason {
				t.Errorf("%s: the decision says %q", fields, rec.Unrecovered)
			}
			_ = f.stop()
		}
	}
}

// Temperatures are for the setting valid: the rest is another sample, and the client sees one stream.
func TestValidAlsoRecoversSampledStreamsWithoutASeed(t *testing.T) {
	for fields, recovered := range map[string]bool{`"temperature":0.7`: true, `"top_p":0.9`: true, `"temperature":0.7,"seed":3`: false} {
		f, _ := parrots(t, 2, func(s *settings) { s.gateway.StreamRecovery = gateway.RecoverValid }, func(i int, p *parrot) {
			p.loses = func(int) (int, string) { return map[int]int{0: 5, 1: -1}[i], "die" }
		})
		got := f.stream(t, "/v1/chat/completions", `{"model":"m","stream":true,"max_tokens":20,"messages":[{"role":"user","content":"hi"}],`+fields+`}`)
		if got.done != recovered || got.failures == 0 != recovered {
			t.Errorf("%s: %s", fields, got.raw)
		}
	}
}

// A worker that repeats another text than the client has must not continue the stream.
func TestAContinuationWithAnotherTextEndsTheStream(t *testing.T) {
	f, _ := parrots(t, 2, nil, func(i int, p *parrot) {
		p.drift = i // the second worker has another model
		p.loses = func(int) (int, string) { return map[int]int{0: 9, 1: -1}[i], "die" }
	})
	got := f.stream(t, "/v1/chat/completions", fmt.Sprintf(greedyChat, 40, `"absent from the text"`))
	if got.done || got.failures != 1 || !strings.Contains(f.metrics(t), `{outcome="refused",reason="diverged"} 1`) {
		t.Errorf("%s", got.raw)
	}
	f.idle(t)
}

func TestAStreamContinuesOnlyAtAnEngineOfTheSameVersion(t *testing.T) {
	f, all := parrots(t, 2, nil, func(i int, p *parrot) {
		p.loses = func(int) (int, string) { return map[int]int{0: 9, 1: -1}[i], "die" }
	})
	f.fleet.Put(f.fleet.Snapshot().Workers()[1].URL, fleet.Facts{Engine: fleet.EngineVLLM, Version: "0.33.0", Models: []fleet.Model{{ID: "m"}}})
	if got := f.stream(t, "/v1/chat/completions", fmt.Sprintf(greedyChat, 40, "null")); got.done || got.failures != 1 || all[1].asked.Load() != 0 {
		t.Errorf("%s", got.raw)
	}
	f.idle(t)
}

// A chat without max_tokens ends with the model's length. The worker says it, whatever policy chose the worker.
func TestAChatWithoutMaxTokensContinuesUnderEveryPolicy(t *testing.T) {
	for _, policy := range []string{"kv_aware", "round_robin", "random"} {
		f, _ := parrots(t, 2, func(s *settings) { s.policy = policy }, func(_ int, p *parrot) {
			p.loses = func(asked int) (int, string) {
				if asked > 1 {
					return -1, ""
				}
				return 9, "die"
			}
		})
		got := f.stream(t, "/v1/chat/completions", `{"model":"m","stream":true,"temperature":0,"stop":"stays","messages":[{"role":"user","content":"hi"}]}`)
		if !got.done || got.failures != 0 || got.finish != "stop" {
			t.Errorf("%s: %s", policy, got.raw)
		}
		if want := `warmpath_stream_recoveries_total{outcome="recovered",reason="truncated"} 1`; !strings.Contains(f.metrics(t), want) {
			t.Errorf("%s: the metrics lack %s", policy, want)
		}
		_ = f.stop()
	}
}

// The model's generation_config.json limits answers to chats, and completions have another limit. A worker that renders
// says the limit.
func TestAContinuationKeepsTheEnginesOwnLimitOfAChat(t *testing.T) {
	for _, asked := range []string{"", `"max_tokens":12,`} {
		f, _ := parrots(t, 2, func(s *settings) { s.facts.CanRender = true }, func(i int, p *parrot) {
			p.most = 25
			p.loses = func(asked int) (int, string) { return map[int]int{0: 9, 1: -1}[i], "die" }
		})
		body := `{"model":"m","stream":true,"temperature":0,` + asked + `"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`
		want := map[string]string{"": `"completion_tokens":25}`, `"max_tokens":12,`: `"completion_tokens":12}`}[asked]
		got := f.stream(t, "/v1/chat/completions", body)
		if !got.done || got.failures != 0 || got.finish != "length" || !strings.HasSuffix(got.usage, want) {
			t.Errorf("%s %s: %s", asked, got.usage, got.raw)
		}
		_ = f.stop()
	}
}

// The two workers have the name of the request in common. The first name of the one is unknown to the other.
func TestAStreamContinuesAtAWorkerWithOtherNamesForTheModel(t *testing.T) {
	for root, continues := range map[string]bool{"org/m": true, "org/m-fp8": false} {
		f, all := parrots(t, 2, nil, func(i int, p *parrot) {
			p.loses = func(asked int) (int, string) {
				if i == 0 && asked > 1 {
					return 0, "die"
				}
				return map[int]int{0: 9, 1: -1}[i], "die"
			}
		})
		for i, models := range [][]fleet.Model{
			{{ID: "first", Root: "org/m", MaxModelLen: 4096}, {ID: "m", Root: "org/m", MaxModelLen: 4096}},
			{{ID: "other", Root: root, MaxModelLen: 4096}, {ID: "m", Root: root, MaxModelLen: 4096}},
		} {
			w := f.fleet.Snapshot().Workers()[i]
			facts := w.Facts
			facts.Models = models
			f.fleet.Put(w.URL, facts)
		}
		got := f.stream(t, "/v1/chat/completions", `{"model":"m","stream":true,"temperature":0,"stop":"stays","messages":[{"role":"user","content":"hi"}]}`)
		if all[0].asked.Load() == 0 {
			t.Fatal("the stream did not begin at the first worker")
		}
		if got.done != continues || (got.failures == 0) != continues {
			t.Errorf("%s: %s", root, got.raw)
		}
		_ = f.stop()
	}
}

// A name may stand for two models, such as a quantized one and its original. Only the same one continues exactly.
func TestAStreamContinuesOnlyWithTheModelOfTheSameRoot(t *testing.T) {
	for root, continues := range map[string]bool{"org/m": true, "": true, "org/m-fp8": false} {
		for _, model := range []string{"m", "adapter"} { // an adapter continues with its base model
			f, all := parrots(t, 2, nil, func(i int, p *parrot) {
				p.loses = func(asked int) (int, string) {
					if i == 0 && asked > 1 {
						return 0, "die"
					}
					return map[int]int{0: 9, 1: -1}[i], "die"
				}
			})
			for i, at := range []string{"org/m", root} {
				w := f.fleet.Snapshot().Workers()[i]
				facts := w.Facts
				facts.Models = []fleet.Model{{ID: "m", Root: at, MaxModelLen: 4096}, {ID: "adapter", Root: "/adapters/1", Parent: "m"}}
				f.fleet.Put(w.URL, facts)
			}
			got := f.stream(t, "/v1/chat/completions", strings.Replace(fmt.Sprintf(greedyChat, 40, "null"), `"m"`, `"`+model+`"`, 1))
			if all[0].asked.Load() == 0 {
				t.Fatal("the stream did not begin at the first worker")
			}
			if got.done != continues || (got.failures == 0) != continues || (all[1].asked.Load() == 1) != continues {
				t.Errorf("%q, %s: %s", root, model, got.raw)
			}
			if want := `outcome="refused",reason="model"} 1`; strings.Contains(f.metrics(t), want) == continues {
				t.Errorf("%q, %s: the metric %s", root, model, want)
			}
			_ = f.stop()
		}
	}
}

// The worker that continues has the tokens of the answer cached, too. They are no part of the client's prompt.
func TestNoMoreTokensAreCachedThanThePromptOfAContinuedStreamHas(t *testing.T) {
	for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
		f, _ := parrots(t, 2, nil, func(_ int, p *parrot) {
			p.caches = true
			p.loses = func(asked int) (int, string) {
				if asked > 1 {
					return -1, ""
				}
				return 9, "die"
			}
		})
		body := map[bool]string{true: greedyChat, false: greedyCompletion}[strings.HasPrefix(path, "/v1/chat")]
		got := f.stream(t, path, fmt.Sprintf(body, 40, "null"))
		if want := `{"prompt_tokens":3,"total_tokens":43,"completion_tokens":40,"prompt_tokens_details":{"audio_tokens":null,"cached_tokens":3}}`; !got.done || got.usage != want {
			t.Errorf("%s: the usage is %s, want %s", path, got.usage, want)
		}
		_ = f.stop()
	}
}

// A continuation has the fields that make the answer, and asks for the rest of its tokens.
func TestAContinuationAsksForTheRestOfTheAnswer(t *testing.T) {
	const copied = `"model":"m","stream":true,"temperature":0,"logit_bias":{"5":1},"repetition_penalty":1.5,"stop_token_ids":[7],"ignore_eos":true,` +
		`"cache_salt":"s","priority":2,"seed":3,"top_p":0.5,"top_k":4,"min_p":0.1,"skip_special_tokens":false,"stop":"stays"`
	for _, c := range []struct {
		path, fields string
		most, least  int // max_tokens and min_tokens of the whole answer; 0: there is no min_tokens
	}{
		{"/v1/completions", `"prompt":[1,2,3]`, 16, 0}, // the default of the API
		{"/v1/completions", `"prompt":[1,2,3],"max_tokens":50,"min_tokens":14`, 50, 14},
		{"/v1/completions", `"prompt":[1,2,3],"max_tokens":50,"min_tokens":2`, 50, 0},
		{"/v1/chat/completions", `"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":40`, 40, 0},
		{"/v1/chat/completions", `"messages":[{"role":"user","content":"hi"}]`, 4096 - 3, 0}, // the rest of the model's length
	} {
		f, all := parrots(t, 2, func(s *settings) { s.facts.Models[0].MaxModelLen = 4096 }, func(i int, p *parrot) {
			p.loses = func(int) (int, string) { return map[int]int{0: 9, 1: -1}[i], "die" }
		})
		if got := f.stream(t, c.path, `{`+copied+`,`+c.fields+`}`); !got.done || got.failures != 0 {
			t.Fatalf("%s: %s", c.fields, got.raw)
		}
		var sent, want map[string]any
		if err := json.Unmarshal(all[1].body.Load().([]byte), &sent); err != nil {
			t.Fatal(err)
		}
		given := int(all[1].given.Load())
		least := ""
		if c.least > 0 {
			least = fmt.Sprintf(`,"min_tokens":%d`, c.least-given)
		}
		if err := json.Unmarshal(fmt.Appendf(nil, `{%s,"return_token_ids":true,"max_tokens":%d%s}`, copied, c.most-given, least), &want); err != nil {
			t.Fatal(err)
		}
		prompt, _ := sent["prompt"].([]any)
		delete(sent, "prompt")
		if given < 5 || len(prompt) != 3+given || !maps.EqualFunc(sent, want, func(a, b any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
			t.Errorf("%s, %d ids: the worker got %v\nwant %v", c.fields, given, sent, want)
		}
		_ = f.stop()
	}
}

// A tokenizer may leave out the space before the first word of ids that it decodes alone.
func TestTheTextOfIdsMayLackTheFirstSpace(t *testing.T) {
	for _, c := range []struct {
		sent, text, rest string
		ok               bool
	}{{" The rain", "The", " rain", true}, {" The rain", " The", " rain", true}, {"The rain", "rain", "", false}, {"The", "", "The", true}, {"e\uFFFDx", "e\uFFFD", "", false}} {
		if rest, ok := gateway.Continues([]byte(c.sent), c.text); ok != c.ok || ok && string(rest) != c.rest {
			t.Errorf("%q, %q: %q, %v", c.sent, c.text, rest, ok)
		}
	}
}

// Only connections were lost: the worker that was lost first serves the rest.
func TestAStreamReturnsToAnEarlierWorkerIfNoOtherIsLeft(t *testing.T) {
	f, _ := parrots(t, 2, nil, func(_ int, p *parrot) {
		p.delay = 5 * time.Millisecond
		p.loses = func(asked int) (int, string) {
			if asked > 1 {
				return -1, ""
			}
			return 9, "die"
		}
	})
	if got := f.stream(t, "/v1/chat/completions", fmt.Sprintf(greedyChat, 40, "null")); !got.done || got.failures != 0 || got.finish != "length" {
		t.Errorf("%s", got.raw)
	}
	f.idle(t)
}

// [DONE] without a finish_reason is no end of an answer: the client does not get it, and the stream continues.
func TestAStreamContinuesAfterDoneWithoutAFinishReason(t *testing.T) {
	f, _ := parrots(t, 2, nil, func(_ int, p *parrot) {
		p.loses = func(asked int) (int, string) {
			if asked > 1 {
				return -1, ""
			}
			return 6, "done"
		}
	})
	for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
		body := map[bool]string{true: greedyChat, false: greedyCompletion}[strings.HasPrefix(path, "/v1/chat")]
		if got := f.stream(t, path, fmt.Sprintf(body, 30, "null")); !got.done || got.failures != 0 || got.finish != "length" {
			t.Errorf("%s: %s", path, got.raw)
		}
	}
	f.idle(t)
}

// If the client has the finish_reason, only the usage and [DONE] are missing: no worker is asked.
func TestAStreamThatWasFinishedIsCompleted(t *testing.T) {
	healthy, _ := parrots(t, 2, nil, nil)
	want := healthy.stream(t, "/v1/completions", fmt.Sprintf(greedyCompletion, 3, "null"))
	f, all := parrots(t, 2, nil, func(_ int, p *parrot) {
		p.loses = func(int) (int, string) { return 3, "die" }
	})
	got := f.stream(t, "/v1/completions", fmt.Sprintf(greedyCompletion, 3, "null"))
	if !got.done || got.finish != "length" || got.usage != want.usage || all[0].asked.Load()+all[1].asked.Load() != 1 {
		t.Errorf("%s\nwant %s", got.raw, want.raw)
	}
}

// 16 streams are in flight when their worker is killed or freezes. None of them ends.
func TestNoStreamEndsWithItsWorker(t *testing.T) {
	for _, how := range []string{"die", "error", "freeze"} {
		f, all := parrots(t, 2, nil, func(i int, p *parrot) {
			p.delay = 2 * time.Millisecond
			p.loses = func(int) (int, string) { return map[int]int{0: 8, 1: -1}[i], how }
		})
		want := ""
		var streams sync.WaitGroup
		var mu sync.Mutex
		var got []stream
		for range 32 { // round robin: half of them are at the first worker
			streams.Go(func() {
				s := f.stream(t, "/v1/chat/completions", fmt.Sprintf(greedyChat, 40, "null"))
				mu.Lock()
				defer mu.Unlock()
				got = append(got, s)
			})
		}
		if how == "freeze" {
			for range 16 {
				<-all[0].froze
			}
			f.fleet.Suspect(0, true, time.Now().UnixNano())
		}
		streams.Wait()
		want = got[0].text
		for _, s := range got {
			if !s.done || s.failures > 0 || s.text != want || s.finish != "length" {
				t.Errorf("%s: %s", how, s.raw)
			}
		}
		recovered := 0
		testenv.Until(t, "all are recorded", func() bool { return len(f.Telemetry.Last(0)) == 32 })
		if n := f.metrics(t); !strings.Contains(n, `outcome="recovered"`) || strings.Contains(n, `outcome="refused"`) {
			t.Errorf("%s: the metrics say %s", how, n)
		}
		for _, rec := range f.Telemetry.Last(0) {
			if len(rec.Recovered) == 1 && rec.Attempts == 2 && rec.OutputTokens != nil && *rec.OutputTokens == 40 {
				recovered++
			}
		}
		// A stream of which the client had nothing yet is repeated whole.
		if lost := int(all[0].asked.Load()); recovered > lost || recovered < 8 {
			t.Errorf("%s: %d streams were lost, %d recovered", how, lost, recovered)
		}
		f.idle(t)
	}
}

// A client that leaves and a drain end a stream as before.
func TestAClientThatLeavesAStreamIsNotRecovered(t *testing.T) {
	f, all := parrots(t, 2, nil, func(_ int, p *parrot) { p.loses = func(int) (int, string) { return 4, "freeze" } })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-all[0].froze; cancel() }() // ends with the request below
	_, _, _ = f.try(ctx, fmt.Sprintf(greedyChat, 40, "null"))
	f.idle(t)
	if all[0].asked.Load()+all[1].asked.Load() != 1 || strings.Contains(f.metrics(t), "warmpath_stream_recoveries_total{") {
		t.Errorf("%d and %d requests", all[0].asked.Load(), all[1].asked.Load())
	}
}

// SGLang sends ids for completions only. It also sends text that may begin a stop string, so such requests are refused.
func TestACompletionOfSGLangContinuesExactly(t *testing.T) {
	sglang := func(s *settings) { s.facts.Engine, s.facts.Version = fleet.EngineSGLang, "0.5.23" }
	body := fmt.Sprintf(greedyCompletion, 50, "null")
	healthy, _ := parrots(t, 2, sglang, func(_ int, p *parrot) { p.sglang = true })
	want := healthy.stream(t, "/v1/completions", body)
	for cut := range 40 {
		f, _ := parrots(t, 2, sglang, func(i int, p *parrot) {
			p.sglang = true
			p.loses = func(int) (int, string) { return map[int]int{0: cut, 1: -1}[i], "die" }
		})
		got := f.stream(t, "/v1/completions", body)
		if got.text != want.text || got.finish != want.finish || got.usage != want.usage || len(got.ids) != 1 || !got.done || strings.Contains(got.raw, "token_ids") {
			t.Errorf("cut behind %d:\n%s\n%s", cut, got.raw, want.raw)
		}
		_ = f.stop()
	}
	for reason, c := range map[string]struct{ path, body string }{
		"engine": {"/v1/chat/completions", fmt.Sprintf(greedyChat, 50, "null")}, "fields": {"/v1/completions", fmt.Sprintf(greedyCompletion, 50, `"x"`)},
	} {
		f, _ := parrots(t, 2, sglang, func(_ int, p *parrot) { p.sglang, p.loses = true, func(int) (int, string) { return 5, "die" } })
		if got := f.stream(t, c.path, c.body); got.failures != 1 || !strings.Contains(f.metrics(t), `outcome="refused",reason="`+reason+`"`) {
			t.Errorf("%s: %s", reason, got.raw)
		}
		_ = f.stop()
	}
}

// An engine hangs, and its server still answers questions. Its streams move after gateway.stream_silence.
func TestAStreamWhoseWorkerIsSilentContinuesElsewhere(t *testing.T) {
	f, all := parrots(t, 2, func(s *settings) { s.gateway.StreamSilence = time.Second }, func(i int, p *parrot) {
		p.loses = func(int) (int, string) { return map[int]int{0: 8, 1: -1}[i], "freeze" }
	})
	got := f.stream(t, "/v1/chat/completions", fmt.Sprintf(greedyChat, 40, "null"))
	if !got.done || got.failures != 0 || got.finish != "length" || all[0].asked.Load() != 1 || all[1].asked.Load() != 1 {
		t.Errorf("%s", got.raw)
	}
	if rec := f.last(t, 1); len(rec.Recovered) != 1 || rec.TotalMS < 1000 {
		t.Errorf("the decision says %v after %v ms", rec.Recovered, rec.TotalMS)
	}
	f.idle(t)
}

// A worker accepts a continuation and sends nothing. The stream moves on, or ends with an error event: it does not wait
// for proxy.header_timeout.
func TestAContinuationAtASilentWorkerMovesOn(t *testing.T) {
	for name, c := range map[string]struct {
		workers, attempts int
		silent            string
		continues         bool
	}{
		"to a third worker":         {3, 3, "freeze", true},
		"to a third, with a header": {3, 3, "freeze behind the header", true},
		"to the first worker":       {2, 3, "freeze", true},
		"not, without attempts":     {3, 1, "freeze", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64 // all workers together
			f, _ := parrots(t, c.workers, func(s *settings) {
				s.gateway.StreamSilence, s.gateway.Attempts, s.gateway.RequestTimeout = 200*time.Millisecond, c.attempts, 20*time.Second
			}, func(_ int, p *parrot) {
				p.loses = func(int) (int, string) {
					switch asked.Add(1) {
					case 1:
						return 8, "die"
					case 2:
						return 0, c.silent
					}
					return -1, ""
				}
			})
			got := f.stream(t, "/v1/chat/completions", fmt.Sprintf(greedyChat, 40, "null"))
			if c.continues && (!got.done || got.failures != 0 || got.finish != "length") || !c.continues && (got.done || got.failures != 1) {
				t.Errorf("%s", got.raw)
			}
			if rec := f.last(t, 1); rec.TotalMS > 15_000 {
				t.Errorf("the stream took %v ms", rec.TotalMS)
			}
			f.idle(t)
		})
	}
}

// The work for an event does not grow with the square of its size: 4 MiB in pieces of 16 bytes took a minute.
func TestALargeEventInSmallPiecesTakesLittleTime(t *testing.T) {
	event := largeEvent(4 << 20)
	want := strings.Replace(string(event), "[7]", "null", 1)
	client := httptest.NewRecorder()
	w := gateway.NewRecovery(client)
	began := time.Now()
	for piece := range slices.Chunk(event, 16) {
		if _, err := w.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the event took %v", took)
	}
	if client.Body.String() != want {
		t.Errorf("the client got %d bytes of another event than %d", client.Body.Len(), len(want))
	}
}

// An event may end at any byte of a piece, and a piece may have any number of events.
func TestEventsAreFoundAtEachPlaceOfAPiece(t *testing.T) {
	events := ": a comment\n\n" + string(largeEvent(3)) + "\n\n" + string(largeEvent(20)) + "data: [DONE]\n\n"
	want := strings.ReplaceAll(events, "[7]", "null")
	for size := 1; size <= len(events); size++ {
		client := httptest.NewRecorder()
		w := gateway.NewRecovery(client)
		for piece := range slices.Chunk([]byte(events), size) {
			if _, err := w.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
		if client.Body.String() != want {
			t.Errorf("pieces of %d bytes: %q\nwant %q", size, client.Body, want)
		}
	}
}

// The memory for one stream is bounded, whatever the workers send: text without ids, and endless tool calls with ids.
func TestAStreamOfEndlessTextIsNotRemembered(t *testing.T) {
	const part = 1 << 20
	for _, c := range []struct {
		body, prefix, delta, ids string
	}{
		{greedyChat, `"content":"`, `"`, "null"},
		{strings.Replace(greedyChat, `"messages"`, `"tools":[{"type":"function","function":{"name":"f"}}],"messages"`, 1), `"tool_calls":[{"index":0,"function":{"arguments":"`, `"}}]`, "[7]"},
	} {
		answer := func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			event := func(text, ids string) string {
				return `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{` + c.prefix + text + c.delta + `},"finish_reason":null,"token_ids":` + ids + `}],"prompt_token_ids":[1,2,3]}` + "\n\n"
			}
			_, _ = io.WriteString(w, event("a", "[7]"))
			for range 9 {
				_, _ = io.WriteString(w, event(strings.Repeat("a", part), c.ids))
			}
			panic(http.ErrAbortHandler)
		}
		f := serve(t, func(s *settings) {
			s.policy, s.facts.Version, s.gateway.StreamRecovery = "round_robin", "0.32.0", gateway.RecoverExact
		}, worker(t, answer), worker(t, answer))
		got := f.stream(t, "/v1/chat/completions", fmt.Sprintf(c.body, 40, "null"))
		if got.done || got.failures != 1 || !strings.Contains(f.metrics(t), `{outcome="refused",reason="length"} 1`) {
			t.Errorf("%s: %d failures", c.prefix, got.failures)
		}
		f.idle(t)
	}
}

// A stream continues at the worker that has its prompt and its answer in the cache.
func TestAStreamContinuesAtTheWorkerThatCachesItsTokens(t *testing.T) {
	tokens := []block.Token{1, 2, 3}
	for len(tokens) < 48 {
		tokens = append(tokens, block.Token(parrotID(len(tokens))))
	}
	moved := 0
	for holder := 0; moved < 3; holder = (holder + 1) % 4 {
		var asked []int
		var mu sync.Mutex // guards asked
		f, _ := parrots(t, 4, func(s *settings) { s.policy, s.facts.BlockSize = "kv_aware", 16 }, func(i int, p *parrot) {
			p.loses = func(int) (int, string) {
				mu.Lock()
				defer mu.Unlock()
				if asked = append(asked, i); len(asked) > 1 {
					return -1, ""
				}
				return 55, "die"
			}
		})
		stored := kvindex.Stored{Hashes: []uint64{1, 2, 3}, BlockSize: 16, Tokens: tokens}
		f.Router.Store(f.fleet.Snapshot().Workers()[holder].Holders[0], &stored)
		f.fleet.SetTrust(f.fleet.Snapshot().Workers()[holder].Holders[0], fleet.TrustExact, "")
		got := f.stream(t, "/v1/chat/completions", fmt.Sprintf(greedyChat, 80, "null"))
		if !got.done || got.failures != 0 || len(asked) != 2 {
			t.Fatalf("workers %v were asked: %s", asked, got.raw)
		}
		if asked[0] != holder { // by chance the stream may begin there
			if moved++; asked[1] != holder {
				t.Errorf("worker %d caches the tokens; workers %v were asked", holder, asked)
			}
		}
		_ = f.stop()
	}
}
