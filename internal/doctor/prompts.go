package doctor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
)

// plan has the prompts for one worker. The first two have a common beginning that no other prompt has, because it
// contains random text.
type plan struct {
	bodies [3][]byte
	ids    [3][]block.Token // the engine's ids; nil: not known
	common int              // number of common tokens of the first two prompts; an estimate if ids are not known
	// sent and answered are the times of the first prompt, by this machine's clock.
	sent, answered time.Time
}

// blocksCommon is how many blocks the common beginning should fill. With four, an event has several blocks, and a
// cached block is not a coincidence.
const blocksCommon = 4

// plan makes the prompts: long enough for some blocks, and short enough for the model.
func (e *exam) plan(ctx context.Context) *plan {
	model := e.report.Facts.BaseModel()
	most := e.MaxModelLen - 16
	if most <= 0 {
		most = 8192
	}
	words := min(max(blocksCommon*e.BlockSize, 64), most/2)
	asker := tokens.New(tokens.DefaultConfig(), e.client)
	defer asker.Close()
	var p *plan
	for range 4 { // a word has one to five tokens: the ids of a first try show how many
		p = newPlan(model, words)
		for i := range p.bodies {
			p.ids[i] = e.idsOf(ctx, asker, p.bodies[i])
		}
		longest := max(len(p.ids[0]), len(p.ids[1]), len(p.ids[2]))
		if longest <= most {
			break
		}
		words = max(words*most/longest-1, 1)
	}
	p.common = words
	if p.ids[0] != nil && p.ids[1] != nil {
		p.common = common(p.ids[0], p.ids[1])
	}
	return p
}

// newPlan makes prompts whose common beginning has some words.
func newPlan(model string, words int) *plan {
	p := new(plan)
	first, other := text(words), text(words)
	tail := max(words/4, 4)
	for i, prompt := range []string{first + " " + text(tail), first + " " + text(tail), other + " " + text(tail)} {
		body, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0})
		if err != nil {
			panic("bug: encode a prompt: " + err.Error())
		}
		p.bodies[i] = body
	}
	return p
}

// vocabulary has short words that have one or two tokens in most tokenizers.
var vocabulary = strings.Fields(`the of and to in is that for it as was with be by on not he his but at are this have
from or had an they which one you were her all she there would their we him been has when who will more no if out so
what up said about into than its time only could new them man some these then two first may any like now my such make
over our even most me state after also made many did must before back see through way where get much go well your know`)

// text returns random words.
func text(words int) string {
	random := make([]byte, words)
	rand.Read(random) // never fails
	var b strings.Builder
	for i, r := range random {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(vocabulary[int(r)%len(vocabulary)])
	}
	return b.String()
}

// common returns the length of the common beginning.
func common(a, b []block.Token) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// idsOf returns the ids that the engine makes of a completion's body; nil if it gives none.
func (e *exam) idsOf(ctx context.Context, asker *tokens.Source, body []byte) []block.Token {
	var read api.Request
	if err := api.Read(api.OpenAICompletions, body, &read); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	w := tokens.Worker{URL: e.URL, Kind: e.kind(), Root: e.Root, MaxModelLen: e.MaxModelLen}
	if w.Kind == tokens.VLLM {
		w.Version = e.Version
	}
	return asker.Ask(ctx, w, tokens.Prompt{Request: &read, Authorization: e.authorization(), Model: e.report.Facts.BaseModel(), Kind: e.kind()}).Tokens
}

// send sends the three prompts, one after another. It returns false if the worker did not answer one of them.
func (p *plan) send(ctx context.Context, e *exam, s *streams) bool {
	s.expect(p.ids[0], e.BlockSize)
	for i, body := range p.bodies {
		e.tell("prompt %d of %d", i+1, len(p.bodies))
		if i == 0 {
			p.sent = time.Now()
		}
		answer := Answer{CachedTokens: -1}
		err := e.ask(ctx, e.options.Prompt, http.MethodPost, "/v1/completions", json.RawMessage(body), func(r io.Reader) error {
			var read struct {
				Usage struct {
					PromptTokens int `json:"prompt_tokens"`
					Details      *struct {
						CachedTokens *int `json:"cached_tokens"`
					} `json:"prompt_tokens_details"`
				} `json:"usage"`
			}
			if err := json.NewDecoder(r).Decode(&read); err != nil {
				return fmt.Errorf("read JSON: %w", err)
			}
			answer.PromptTokens = read.Usage.PromptTokens
			if d := read.Usage.Details; d != nil && d.CachedTokens != nil {
				answer.CachedTokens = *d.CachedTokens
			}
			return nil
		})
		if err != nil {
			e.find("prompt", Error, err.Error(), "an answer of one token",
				"read the engine's log; send the same request with curl to URL/v1/completions. The caches and the events were not examined")
			return false
		}
		if i == 0 {
			p.answered = time.Now()
		}
		e.Prompts = append(e.Prompts, answer)
	}
	return true
}
