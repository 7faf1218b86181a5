package connector

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// Connector writes what one kind of KV connector needs into requests, and reads what it finds in answers.
type Connector struct{ file file }

// End is one worker of a pair.
type End struct {
	URL string // the worker's URL, as the operator gave it
	// Rank is the number of the rank that serves the leg, as the header X-Data-Parallel-Rank has it. The worker has
	// Ranks ranks from FirstRank on.
	Rank, Ranks, FirstRank int
	Transfer               fleet.Transfer
}

// Pair is the request and the two workers that serve its legs.
type Pair struct {
	// RequestID is the same in both legs, and is also sent as X-Request-Id. It is new for each attempt to divide the
	// request: nixl_push finds the blocks by it.
	RequestID string
	Room      uint64 // a random number of 63 bits, new for each attempt
	Prefill   End
	Decode    End
	Batch     int  // number of prompts of the body; 0 means 1
	Chat      bool // the body has messages; otherwise it has a prompt
	Stream    bool // the client wants a stream
}

var connectors = mustRead()

func mustRead() map[string]*Connector {
	all, err := read(files)
	if err != nil {
		panic("bug: a connector's file: " + err.Error())
	}
	return all
}

// Find returns the connector of that name.
func Find(name string) (*Connector, bool) {
	c, ok := connectors[name]
	return c, ok
}

// Names returns the names of all connectors, sorted.
func Names() []string { return slices.Sorted(maps.Keys(connectors)) }

// Default returns the name of the connector that an engine has if it has one, "" if there is none for that engine.
func Default(e fleet.Engine) string {
	for name, c := range connectors {
		if c.file.Engine == e.String() {
			return name
		}
	}
	return ""
}

// Name returns the connector's name.
func (c *Connector) Name() string { return c.file.Name }

// Together reports whether both legs are sent at once. Otherwise the decode leg is sent after the answer of the prefill
// leg.
func (c *Connector) Together() bool { return c.file.Order == orderTogether }

// Leases reports whether a prefill worker keeps the blocks of its leg until the decode worker has read them, or a time
// is over, and says in its answer where they are.
func (c *Connector) Leases() bool { return c.file.Answer.Carried != "" }

// Fetches reports whether a worker can read the beginning of any prompt from another worker that has it cached. A
// connector that reads only what an earlier answer kept does not.
func (c *Connector) Fetches() bool { return c.file.Fetch != nil && c.file.Kept == nil }

// Ready returns an error if a fact about the workers is missing that the connector needs. The error says how the
// operator gives it.
func (c *Connector) Ready(p *Pair) error {
	r := request{Pair: p}
	for _, name := range c.file.Needs {
		if _, ok := r.value(name); !ok {
			return fmt.Errorf("connector %s: %s", c.file.Name, needs[name])
		}
	}
	return nil
}

// AppendPrefill appends the body of the prefill leg to dst. body is the client's: one JSON object, as api.Read accepts
// it. If err is not nil, nothing useful was appended: the request must be served by one worker.
func (c *Connector) AppendPrefill(dst, body []byte, p *Pair) ([]byte, error) {
	for key, value := range jsonscan.Members(body) {
		for name, kind := range c.file.Undivided {
			if sameKey(key, name) && kinds[kind](value) {
				return dst, fmt.Errorf("connector %s: a request with %s is not divided", c.file.Name, name)
			}
		}
	}
	return c.append(dst, body, &c.file.Prefill, &request{Pair: p})
}

// AppendDecode appends the body of the decode leg to dst. answer is the body of the prefill leg's answer, nil if
// Together. Of the answer everything is taken over that the connector carries, byte for byte, and the ids of the prompt
// if they are there. An answer that lacks a part is an error: its request must be served in another way.
func (c *Connector) AppendDecode(dst, body []byte, p *Pair, answer []byte) ([]byte, error) {
	r := request{Pair: p}
	if !c.Together() {
		if err := c.read(&r, answer); err != nil {
			return dst, err
		}
	}
	return c.append(dst, body, &c.file.Decode, &r)
}

// read takes from the answer of the prefill leg what the decode leg needs.
func (c *Connector) read(r *request, answer []byte) (err error) {
	of := &c.file.Answer
	if of.Carried == "" {
		r.promptIDs, _ = c.PromptIDs(answer, r.Chat)
		return nil
	}
	if err := check(answer); err != nil {
		return err
	}
	reason, _ := textOf(find(answer, "choices.0.finish_reason"))
	if of.Finish != nil && !slices.Contains(of.Finish, reason) {
		return fmt.Errorf("the prefill leg ended with %.40q: there is nothing to decode", reason)
	}
	r.promptIDs = c.promptIDs(answer, r.Chat)
	r.carried, err = carry(answer, of.Carried, of.Has)
	if err != nil {
		return err
	}
	for name, want := range of.Is {
		if said, ok := textOf(lastMember(r.carried, name)); ok && said != want {
			return fmt.Errorf("%s.%s in the engine's answer is %.40q, not %q: the worker has another connector than %s",
				of.Carried, name, said, want, c.file.Name)
		}
	}
	return nil
}

// AppendFetch appends a body to dst that makes the worker p.Decode read blocks from the worker p.Prefill before it
// computes the rest. body is the client's, or what AppendPrefill wrote for the worker that computes. kept is what Kept
// returned for the last turn's answer; a connector that keeps nothing ignores it. The error says that the connector
// cannot fetch, or what is missing.
func (c *Connector) AppendFetch(dst, body []byte, p *Pair, kept []byte) ([]byte, error) {
	if c.file.Fetch == nil {
		return dst, fmt.Errorf("connector %s fetches nothing from another worker", c.file.Name)
	}
	r := request{Pair: p}
	if c.file.Kept != nil {
		if len(kept) == 0 || kept[0] != '{' {
			return dst, errors.New("nothing was kept from the last turn")
		}
		if err := check(kept); err != nil {
			return dst, err
		}
		r.kept = kept
	}
	return c.append(dst, body, c.file.Fetch, &r)
}

// AppendRelease appends a body to dst that makes the worker p.Decode tell the worker p.Prefill that nobody will read
// what that worker kept of an answer. Otherwise its blocks stay until their time is over. The arguments are those of
// AppendFetch.
func (c *Connector) AppendRelease(dst, body []byte, p *Pair, kept []byte) ([]byte, error) {
	if c.file.Release == nil {
		return dst, fmt.Errorf("connector %s releases nothing that was kept", c.file.Name)
	}
	if err := check(kept); err != nil {
		return dst, err
	}
	return c.append(dst, body, c.file.Release, &request{Pair: p, kept: kept})
}

// Kept is what the worker of a decode leg keeps of its answer for the next turn.
type Kept struct {
	Params []byte // for AppendFetch and AppendRelease; a part of the answer
	// Tokens are the tokens whose blocks are kept: those of the prompt, and those of the answer as far as they have
	// blocks. Engines read blocks by their position and compare no token, so the blocks are only for a prompt that
	// begins with exactly these tokens.
	Tokens []block.Token
	Blocks int           // how many blocks are named
	Lasts  time.Duration // for how long they may be read
}

// Kept returns what a whole answer of the decode leg says about the blocks that its worker keeps for the next turn.
// chat says that the request was a chat. ok is false if nothing is kept, or if it is not clear which tokens it has.
func (c *Connector) Kept(answer []byte, chat bool) (kept Kept, ok bool) {
	k := c.file.Kept
	if k == nil || check(answer) != nil {
		return Kept{}, false
	}
	params, err := carry(answer, k.Carried, k.Has)
	prompt, made := c.promptIDs(answer, chat), find(answer, k.IDs)
	if err != nil || prompt == nil || !numbers(made) {
		return Kept{}, false
	}
	kept = Kept{Params: params, Lasts: time.Duration(k.Seconds) * time.Second}
	kept.Tokens = appendTokens(appendTokens(nil, prompt), made)
	n, err := strconv.Atoi(string(lastMember(params, k.Tokens)))
	if err != nil || n <= 0 || n > len(kept.Tokens) {
		return Kept{}, false
	}
	kept.Tokens = kept.Tokens[:n]
	for range jsonscan.Items(item(lastMember(params, k.Blocks), 0)) {
		kept.Blocks++
	}
	return kept, true
}

// Keeps reports whether workers keep their answers for the next turn: see Kept.
func (c *Connector) Keeps() bool { return c.file.Kept != nil }

// appendTokens appends a list of numbers that was read.
func appendTokens(dst []block.Token, list []byte) []block.Token {
	for _, n := range jsonscan.Items(list) {
		id, _ := strconv.ParseUint(string(n), 10, 31)
		dst = append(dst, block.Token(id))
	}
	return dst
}

// PromptIDs returns the ids of the prompt, a JSON array, if the answer of a prefill leg has them. chat says that the
// request was a chat. AppendDecode places them itself.
func (c *Connector) PromptIDs(answer []byte, chat bool) (ids []byte, ok bool) {
	if check(answer) != nil {
		return nil, false
	}
	ids = c.promptIDs(answer, chat)
	return ids, ids != nil
}

// PromptTokens returns the tokens of the prompt, if the answer of a prefill leg has them.
func (c *Connector) PromptTokens(answer []byte, chat bool) (tokens []block.Token, ok bool) {
	ids, ok := c.PromptIDs(answer, chat)
	return appendTokens(nil, ids), ok
}

func (c *Connector) promptIDs(answer []byte, chat bool) []byte {
	kind := "completion"
	if chat {
		kind = "chat"
	}
	ids := find(answer, c.file.Answer.PromptIDs[kind])
	if c.file.Answer.PromptIDs[kind] == "" || !numbers(ids) {
		return nil
	}
	return ids
}

// Abort returns the request that ends a leg at its worker. answer is the body of the prefill leg's answer, nil if there
// is none. If ok is false, nothing more can be done than to close the connection of the leg.
func (c *Connector) Abort(l fleet.Leg, p *Pair, answer []byte) (method, path string, body []byte, ok bool) {
	a, ok := c.file.Abort[l.String()]
	if !ok {
		return "", "", nil, false
	}
	r := request{Pair: p}
	if of := &c.file.Answer; of.Carried != "" {
		if check(answer) != nil {
			return "", "", nil, false
		}
		var err error
		if r.carried, err = carry(answer, of.Carried, of.Has); err != nil {
			return "", "", nil, false
		}
	}
	if body, ok = a.Body.append(nil, &r, nil); !ok {
		return "", "", nil, false
	}
	return a.Method, a.Path, body, true
}

// append appends body with the members of a leg.
func (c *Connector) append(dst, body []byte, l *leg, r *request) ([]byte, error) {
	if r.Batch > 1 && len(c.file.Lists) == 0 {
		return dst, fmt.Errorf("connector %s: a request with %d prompts is not divided", c.file.Name, r.Batch)
	}
	if err := c.Ready(r.Pair); err != nil {
		return dst, err
	}
	edits := make([]api.Edit, 0, len(l.Set.members)+len(l.Replace.members))
	for i := range l.Set.members {
		edits = c.edit(edits, &l.Set.members[i], body, r)
	}
	for key := range jsonscan.Members(body) {
		for i := range l.Replace.members {
			if m := &l.Replace.members[i]; sameKey(key, m.name) {
				edits = c.edit(edits, m, body, r)
			}
		}
	}
	return api.AppendEdited(dst, body, edits...), nil
}

// edit appends the edit of one member of a body, if the member has a value.
func (c *Connector) edit(edits []api.Edit, m *member, body []byte, r *request) []api.Edit {
	if slices.ContainsFunc(edits, func(e api.Edit) bool { return e.Name == m.name }) {
		return edits // the client sent the key twice; AppendEdited changes both
	}
	var value []byte
	var ok bool
	if r.Batch > 1 && slices.Contains(c.file.Lists, m.name) {
		value, ok = c.list(m, r)
	} else {
		var over []byte
		if m.value.object {
			over = lastMember(body, m.name)
		}
		value, ok = m.value.append(nil, r, over)
	}
	if !ok {
		return edits
	}
	return append(edits, api.Edit{Name: m.name, Value: value})
}

// list returns one value for each prompt of a body. Each prompt has a room of its own, which names the same rank.
func (c *Connector) list(m *member, r *request) (list []byte, ok bool) {
	each := *r
	list = append(list, '[')
	for each.prompt = range r.Batch {
		if each.prompt > 0 {
			list = append(list, ',')
		}
		if list, ok = m.value.append(list, &each, nil); !ok {
			return nil, false
		}
	}
	return append(list, ']'), true
}
