package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
)

// continuation is how a continuation is asked for.
type continuation uint8

const (
	none  continuation = iota
	whole              // no text came yet: the same request again
	byIDs              // a completion of the ids
)

// aim prepares the search for another worker after the loss of w.
func (r *recovery) aim(w *fleet.Worker) {
	r.movable.Store(false)
	r.tries++
	r.failed, r.pending, r.header = r.failed[:0], r.pending[:0], http.Header{}
	r.parsing.waiting = r.parsing.waiting[:0]
	r.again = byIDs
	p := &r.x.prepared
	q := &p.route
	q.Exclude = append(q.Exclude, w.ID)
	if len(r.x.untried(w)) == 0 { // only a connection may have been lost: an earlier worker may serve the rest
		q.Exclude = append(q.Exclude[:0], w.ID)
	}
	if len(r.ids) == 0 && len(r.text) == 0 {
		r.again = whole
		return
	}
	if !p.read.MixedScopes {
		q.Tokens = append(append(make([]block.Token, 0, len(r.prompt)+len(r.ids)), r.prompt...), r.ids...)
		q.Features, q.Text, q.Known, q.Stable = nil, nil, block.Prefix{}, block.Prefix{}
	}
	p.decisions.Recycle()
	p.decisions = r.x.g.Router.Prepare(q)
}

// prepare fills in the continuation at w. why is "" if w can continue the stream.
func (r *recovery) prepare(ctx context.Context, w *fleet.Worker) (why string) {
	a := &r.x.attempt
	if w.Facts.Engine != r.engine || w.Facts.Version != r.version {
		return reasonEngine
	}
	if r.again == whole {
		a.Body = api.AppendEdited(nil, a.Body, api.Edit{Name: "return_token_ids", Value: []byte("true")})
		a.Writer, r.base = r, 0
		r.root = r.rootAt(w)
		return ""
	}
	if root := r.rootAt(w); root != "" && r.root != "" && root != r.root {
		return reasonModel
	}
	limit := r.limit(w)
	if r.chat && (r.parsing.on || w.Facts.CanRender) {
		made, ok := r.rendering(ctx, w)
		switch {
		case ok:
			if why := r.differs(&made); why != "" {
				return why
			}
			limit = cmp.Or(made.Sampling.MaxTokens, limit)
		case r.parsing.on:
			return r.parserLabel()
		}
	}
	if limit <= 0 {
		return reasonMaxTokens
	}
	if r.parsing.on {
		return r.prepareParsed(ctx, w, limit)
	}
	n, rest, why := r.stepBack(ctx, w, limit)
	if why != "" && r.mayRepeat() {
		n, rest, why = 0, r.text, ""
		if r.until.IsZero() {
			r.until = time.Now().Add(repeatTime)
		}
	}
	if why != "" {
		return why
	}
	r.skip = slices.Clone(rest)
	r.ids = r.ids[:n]
	for len(r.ends) > 0 && r.ends[len(r.ends)-1] > n {
		r.ends = r.ends[:len(r.ends)-1]
	}
	r.base = n
	a.Path, a.Dialect, a.Writer = api.OpenAICompletions.Path(), api.OpenAICompletions, r
	a.Body = r.body(limit - n)
	return ""
}

// stepBack returns how many ids w continues: as many as have a text with which the client's text begins. rest is the
// client's text behind it. why is "" if there is such a number.
func (r *recovery) stepBack(ctx context.Context, w *fleet.Worker, limit int) (n int, rest []byte, why string) {
	ctx, cancel := context.WithTimeout(ctx, detokenizeTime)
	defer cancel()
	for step := range min(maxStepsBack, len(r.ends)+1) {
		n := 0
		if at := len(r.ends) - 1 - step; at >= 0 {
			n = r.ends[at]
		}
		if n >= limit {
			continue // the finish_reason is missing: the last token is computed again
		}
		text, ok := r.detokenize(ctx, w, r.ids[:n])
		if !ok {
			return 0, nil, reasonDetokenize
		}
		if rest, fits := continues(r.text, text); fits {
			return n, rest, ""
		}
	}
	return 0, nil, reasonText
}

// mayRepeat reports whether a worker may compute the whole answer again, because it is not known which ids make the
// client's text. What it repeats is compared with the client's text and left out, so this is as exact as a continuation
// of ids. It must not take too long. The text will probably take as long as it took before.
func (r *recovery) mayRepeat() bool {
	return greedy(&r.x.prepared.read) && time.Unix(0, r.heard.Load()).Sub(r.first) < repeatTime
}

// rootAt returns from where w loaded the model, "" if it is not known. Two workers can serve two models, such as a
// quantized one and its original, under one name: one of them would continue the ids of the other with other tokens.
func (r *recovery) rootAt(w *fleet.Worker) string { return r.modelAt(w).Root }

// modelAt returns what w reports about the request's model, or about the base model of the request's adapter. A worker
// may call the model by other names than the first worker does; it has the name of the request.
func (r *recovery) modelAt(w *fleet.Worker) fleet.Model {
	p := &r.x.prepared
	reported := func(name string) (m fleet.Model) {
		if i := slices.IndexFunc(w.Facts.Models, func(m fleet.Model) bool { return m.ID == name }); i >= 0 {
			m = w.Facts.Models[i]
		}
		return m
	}
	m := reported(cmp.Or(p.read.Model, p.model)) // a request without a name is for the only model of the fleet
	if m.Parent != "" {
		return reported(m.Parent)
	}
	return m
}

// continues returns the rest of sent after text, if sent begins with text and text ends with a whole character. A
// tokenizer may leave out the space before the first word of ids that it decodes alone.
func continues(sent []byte, text string) (rest []byte, ok bool) {
	if strings.HasSuffix(text, "\uFFFD") {
		return nil, false
	}
	if rest, ok = bytes.CutPrefix(sent, []byte(text)); ok || text == "" {
		return rest, ok
	}
	return bytes.CutPrefix(sent, []byte(" "+text))
}

// limit returns the greatest number of tokens of the whole answer, as far as it is known without a question to w; 0 if
// it is not known. The engine may have a lower limit for chats, from the model's generation_config.json or from its
// flags: see rendering.
func (r *recovery) limit(w *fleet.Worker) int {
	p := &r.x.prepared
	if p.read.MaxTokens > 0 {
		return p.read.MaxTokens
	}
	if !r.chat {
		return 16 // the default of the completions API
	}
	if longest := r.modelAt(w).MaxModelLen; longest > 0 {
		return longest - len(r.prompt)
	}
	return 0
}

// body returns the body of a continuation that may have limit tokens.
func (r *recovery) body(limit int) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	least := 0
	for name, value := range r.x.prepared.read.Members {
		if string(name) == "min_tokens" {
			least, _ = strconv.Atoi(string(value))
		}
		if recoverable[string(name)].copied {
			b.WriteString(`"` + string(name) + `":`)
			b.Write(value)
			b.WriteByte(',')
		}
	}
	b.WriteString(`"return_token_ids":true,"max_tokens":` + strconv.Itoa(limit))
	if least > r.base {
		b.WriteString(`,"min_tokens":` + strconv.Itoa(least-r.base))
	}
	b.WriteString(`,"prompt":[`)
	for i, id := range r.prompt {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(uint64(id), 10))
	}
	for _, id := range r.ids {
		b.WriteString("," + strconv.FormatUint(uint64(id), 10))
	}
	b.WriteString("]}")
	return b.Bytes()
}

// detokenize asks w for the text of ids.
func (r *recovery) detokenize(ctx context.Context, w *fleet.Worker, ids []uint32) (text string, ok bool) {
	if len(ids) == 0 {
		return "", true
	}
	model, err := json.Marshal(r.x.prepared.read.Model)
	list, err2 := json.Marshal(ids)
	if err != nil || err2 != nil {
		return "", false
	}
	body := []byte(`{"tokens":` + string(list))
	if r.x.prepared.read.Model != "" {
		body = append(append(body, `,"model":`...), model...)
	}
	answer := kept{header: http.Header{}}
	result := r.x.g.Client.Forward(ctx, &proxy.Attempt{
		Worker: w.URL, Path: api.Detokenize.Path(), Header: r.x.r.Header, Body: append(body, '}'), Dialect: api.Detokenize, Whole: true,
		Writer: &answer, Set: []proxy.Field{{Name: "Accept", Value: "application/json"}, {Name: "Content-Type", Value: "application/json"}},
	})
	var said struct{ Prompt, Text *string } // of vLLM, of SGLang
	if result.Class != proxy.Success || json.Unmarshal(answer.body, &said) != nil || said.Prompt == nil && said.Text == nil {
		return "", false
	}
	return *cmp.Or(said.Prompt, said.Text), true
}

var errLong = errors.New("the answer is too long")

// kept is an http.ResponseWriter that keeps the answer, up to maxEvent bytes.
type kept struct {
	header http.Header
	body   []byte
}

func (k *kept) Header() http.Header { return k.header }
func (k *kept) WriteHeader(int)     {}
func (k *kept) Write(b []byte) (int, error) {
	if len(k.body)+len(b) > maxEvent {
		return 0, errLong
	}
	k.body = append(k.body, b...)
	return len(b), nil
}
