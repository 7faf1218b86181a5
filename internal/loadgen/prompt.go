package loadgen

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/workload"
)

// words has the words that stand for token ids in a text. They are common and short, so that with most tokenizers a
// word with the space before it is one token. With 256 words a block of 16 tokens has 128 bits of content.
var words = strings.Fields(`
able acid aged also area army away baby back ball band bank base bath bear beat been beer bell belt best bill bird blow blue boat
body bomb bond bone book boom born boss both bowl bulk burn bush busy call calm came camp card care case cash cast cell chat chip
city club coal coat code cold come cook cool cope copy core cost crew crop dark data date dawn days dead deal dean dear debt deep
deny desk dial diet disk does done door dose down draw drew drop drug dual duke dust duty each earn ease east easy edge else even
ever exit face fact fail fair fall farm fast fate fear feed feel feet fell felt file fill film find fine fire firm fish five flat
flow food foot ford form fort four free from fuel full fund gain game gate gave gear gene gift girl give glad goal goes gold golf
gone good gray grew grow gulf hair half hall hand hang hard harm hate have head hear heat held hell help here hero high hill hire
hold hole holy home hope host hour huge hung hunt hurt idea inch into iron item jack jane jean join jump jury just keen keep kent
kept kick kind king knee knew know lack lady laid lake land lane last late lead left less life lift like line link list live load
loan lock logo long look lord lose loss lost love luck made mail main make male many mark mass meal mean meat meet menu mere mike`)[:256]

// appendWords appends a word for each token, with a space before each word.
func appendWords(dst []byte, tokens []block.Token) []byte {
	for _, t := range tokens {
		dst = append(append(dst, ' '), words[t&255]...)
	}
	return dst
}

// spoken is an answer of the server. The next prompts of its session contain it.
type spoken struct {
	text   string
	tokens []block.Token
}

// prompter builds request bodies. It is safe for concurrent use.
type prompter struct {
	cfg    *Config
	model  string
	closed map[int]int // by session: number of requests that have not ended; guarded by mu

	mu      sync.Mutex
	answers map[int]map[uint64]spoken // answers by session and by segment id; guarded by mu
}

func newPrompter(cfg *Config, model string, w *workload.Workload) *prompter {
	p := &prompter{cfg: cfg, model: model, closed: map[int]int{}, answers: map[int]map[uint64]spoken{}}
	for i := range w.Requests {
		if s := w.Requests[i].Session; s >= 0 {
			p.closed[s]++
		}
	}
	return p
}

// form returns the form of r's prompt: Chat, Text or Tokens.
func (p *prompter) form(r *workload.Request) Prompt {
	switch {
	case p.cfg.Prompt != Auto:
		return p.cfg.Prompt
	case r.Text == nil || len(r.Text.Tokens) > 0:
		return Tokens
	case r.Text.Messages != nil:
		return Chat
	}
	return Text
}

// variant returns the request that target gets instead of r. Its made-up content differs between targets, because an
// engine behind two targets would otherwise have the prompt in its cache when the second target gets the request.
// variant does not change recorded text.
func variant(r *workload.Request, target int) *workload.Request {
	if target == 0 || r.Text != nil {
		return r
	}
	salt := uint64(target) * block.Golden
	v := *r
	v.Segments = slices.Clone(r.Segments)
	if v.Segments == nil {
		v.Segments = []workload.Segment{{ID: uint64(r.ID) + 1<<63, Tokens: r.Input}}
	}
	for i := range v.Segments {
		v.Segments[i].ID ^= salt
	}
	if v.OutputSegment != 0 {
		v.OutputSegment ^= salt
	}
	return &v
}

// body returns the path and the body of the HTTP request for r.
func (p *prompter) body(r *workload.Request) (path string, body []byte) {
	form := p.form(r)
	dst := append(make([]byte, 0, 6*r.Input+512), '{')
	path = "/v1/completions"
	switch form {
	case Chat:
		path = "/v1/chat/completions"
		dst = p.appendMessages(dst, r)
	case Text:
		dst = appendString(append(dst, `"prompt":`...), p.text(r))
	default:
		dst = p.appendIDs(append(dst, `"prompt":`...), r)
	}
	model := r.Model
	if model == "" {
		model = p.model
	}
	if r.LoRA != "" {
		model = r.LoRA
	}
	dst = appendString(append(dst, `,"model":`...), model)
	dst = strconv.AppendInt(append(dst, `,"max_tokens":`...), int64(r.Output), 10)
	if !p.cfg.OpenAIOnly {
		dst = strconv.AppendInt(append(dst, `,"ignore_eos":true,"min_tokens":`...), int64(r.Output), 10)
		if r.OutputSegment != 0 {
			dst = append(dst, `,"return_token_ids":true`...)
		}
	}
	if !p.cfg.Whole {
		dst = append(dst, `,"stream":true,"stream_options":{"include_usage":true}`...)
	}
	return path, append(dst, '}')
}

// appendMessages appends the messages of a chat. These are the recorded messages, or else messages that are made from
// the segments, or else one message of the user. In messages from segments, answers of the server become messages of
// the assistant, and the other segments become messages of the user.
func (p *prompter) appendMessages(dst []byte, r *workload.Request) []byte {
	if t := r.Text; t != nil && t.Messages != nil {
		dst = append(append(dst, `"messages":`...), t.Messages...)
		if t.Tools != nil {
			dst = append(append(dst, `,"tools":`...), t.Tools...)
		}
		return dst
	}
	dst = append(dst, `"messages":[`...)
	if r.Segments == nil || r.Text != nil {
		return append(appendMessage(dst, "user", p.text(r)), ']')
	}
	var said []byte
	for _, s := range r.Segments {
		answer, ok := p.answer(r, s.ID)
		if !ok {
			said = appendWords(said, s.AppendTokens(nil))
			continue
		}
		if len(said) > 0 {
			dst = append(appendMessage(dst, "user", string(said)), ',')
		}
		said = said[:0]
		dst = append(appendMessage(dst, "assistant", answer.text), ',')
	}
	return append(appendMessage(dst, "user", string(said)), ']')
}

func appendMessage(dst []byte, role, content string) []byte {
	dst = append(append(append(dst, `{"role":"`...), role...), `","content":`...)
	return append(appendString(dst, content), '}')
}

// text returns r's prompt as text. If there is a recorded text, this is the recorded text. Else it consists of words
// for r's tokens; a segment that is an answer of the server becomes the text of the answer.
func (p *prompter) text(r *workload.Request) string {
	if t := r.Text; t != nil && t.Prompt != "" {
		return t.Prompt
	}
	if r.Text != nil || r.Segments == nil {
		return string(appendWords(nil, r.AppendTokens(nil)))
	}
	var dst []byte
	for _, s := range r.Segments {
		if answer, ok := p.answer(r, s.ID); ok {
			dst = append(dst, answer.text...)
			continue
		}
		dst = appendWords(dst, s.AppendTokens(nil))
	}
	return string(dst)
}

// appendIDs appends the prompt of r as a JSON list of token ids.
func (p *prompter) appendIDs(dst []byte, r *workload.Request) []byte {
	tokens := make([]block.Token, 0, r.Input)
	if r.Segments == nil || r.Text != nil {
		tokens = p.known(r.AppendTokens(tokens), 0)
	} else {
		for _, s := range r.Segments {
			if answer, ok := p.answer(r, s.ID); ok && len(answer.tokens) > 0 {
				tokens = append(tokens, answer.tokens...)
				continue
			}
			from := len(tokens)
			tokens = p.known(s.AppendTokens(tokens), from)
		}
	}
	dst = append(dst, '[')
	for i, t := range tokens {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(t), 10)
	}
	return append(dst, ']')
}

// known replaces the ids in tokens[from:] by ids below Config.Vocabulary, if Vocabulary is not 0.
func (p *prompter) known(tokens []block.Token, from int) []block.Token {
	if p.cfg.Vocabulary > 0 {
		for i := from; i < len(tokens); i++ {
			tokens[i] %= block.Token(p.cfg.Vocabulary)
		}
	}
	return tokens
}

// answer returns the server's answer with this segment id in r's session. The second result is false if there is no
// such answer.
func (p *prompter) answer(r *workload.Request, id uint64) (spoken, bool) {
	if r.Session < 0 {
		return spoken{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := p.answers[r.Session][id]
	return a, ok
}

// said stores an answer for the next turns of the session.
func (p *prompter) said(r *workload.Request, a spoken) {
	if r.Session < 0 || r.OutputSegment == 0 || a.text == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answers[r.Session] == nil {
		p.answers[r.Session] = map[uint64]spoken{}
	}
	p.answers[r.Session][r.OutputSegment] = a
}

// ended counts the end of r. After the last request of a session it forgets the session's answers.
func (p *prompter) ended(r *workload.Request) {
	if r.Session < 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed[r.Session]--; p.closed[r.Session] <= 0 {
		delete(p.answers, r.Session)
	}
}

func appendString(dst []byte, s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil {
		panic("bug: a string has no JSON form: " + err.Error())
	}
	return append(dst, quoted...)
}
