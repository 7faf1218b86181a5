package tokens

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
)

// A chat that grows is asked for again and again with the same turns at its beginning, and many chats begin with the
// same system prompt. Two answers of engines tell the ids that two lists with the same first turns have in common. They
// are what a third list with these turns begins with, as long as the template renders turns alike whatever follows
// them. That is not assumed (templates drop what was thought, and name dates): it counts once answers have shown it for
// lists of the same kind, each answer is compared with what would have been said of it, and one that differs ends it
// for the model.

const (
	// margin is how many ids at the end of a beginning are left out: the text that follows may be joined with the last
	// ones.
	margin = 8
	// mostDropped is how many of a list's last ids may be gone in the answer for a longer one: what asks the model to
	// speak. A template that drops more rewrites its history.
	mostDropped = 64
	// leastBeginning is the shortest beginning that is worth remembering, in ids: a block.
	leastBeginning = 16
	// mostAlike is how many bytes the texts after a beginning may have in common for two answers to tell where it ends:
	// each byte may be an id that belongs to the texts.
	mostAlike = 16
	// agreeFirst answers of a kind must have agreed before it counts, agreeAgain of a model in a row after one that did
	// not.
	agreeFirst = 2
	agreeAgain = 20
	// maxClasses bounds the kinds of lists that are told apart for a model: templates' arguments are the clients'.
	maxClasses = 512
)

// beginnings is what is known of the templates by their answers. It is safe for concurrent use.
type beginnings struct {
	checked, differed atomic.Uint64
	growing           atomic.Uint64 // chats whose earlier turn is known

	mu     sync.Mutex
	models map[string]*template // guarded by mu, and so are the templates; as many as the fleet serves
}

// template is what a model's templates do with the turns of a list when it grows.
type template struct {
	classes map[key]*class
	failing bool // an answer differed from what was said of it
	agreed  int  // in a row, while failing
}

// class is what they do with lists of one kind.
type class struct {
	dropped int // most ids at the end of a list's answer that a longer list's did not have
	agreed  int // answers
}

func (b *beginnings) of(model string) *template {
	m := b.models[model]
	if m == nil {
		if b.models == nil {
			b.models = map[string]*template{}
		}
		m = &template{classes: map[key]*class{}}
		b.models[model] = m
	}
	return m
}

// off returns the models whose beginnings are not used now.
func (b *beginnings) off() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return failingOf(b.models, func(m *template) bool { return m.failing })
}

// known is the beginning of a list's ids.
type known struct {
	tokens []block.Token
	at     int // bytes of the turns that it covers
	// own: it is the answer for an earlier list, to which turns were added. Else it is what lists have in common that
	// part here.
	own  bool
	from key // the cache's key of the answer or the fork
}

// kindOf is the kind of list that grows from step i of l on.
func (l *list) kindOf(i int) key {
	k := l.class
	k[0] ^= byte(l.steps[i].last)
	k[1] ^= byte(l.steps[i].next)
	if l.steps[len(l.steps)-1].users > l.steps[i].users {
		k[2] ^= 1
	}
	return k
}

// forkKind is the kind of list that parts from others after step i of l.
func (l *list) forkKind(i int) key {
	k := l.kindOf(i)
	k[3] ^= 1
	return k
}

// forkOf is the key of what lists have in common that part after step i, where the same role goes on.
func (l *list) forkOf(i int) key {
	k := l.steps[i].key
	k[0] ^= 0xf0
	k[1] ^= byte(l.steps[i].next)
	return k
}

// rewritten reports whether templates may render the turns up to step i in another way now: they drop what the
// assistant thought once the user has spoken again.
func (l *list) rewritten(i int) bool {
	return l.steps[i].open && l.steps[len(l.steps)-1].users > l.steps[i].users
}

// beginning returns the longest beginning of l's ids that is known, whether or not it is used now.
func (s *Source) beginning(model string, l *list) (found known, used bool) {
	if !l.plain {
		return known{}, false
	}
	b := &s.beginnings
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.of(model)
	for i := len(l.steps) - 2; i >= 0; i-- {
		if l.rewritten(i) {
			continue
		}
		if k, ok := s.grown(m, l, i); ok {
			return k, !m.failing
		}
		if k, ok := s.forked(m, l, i); ok {
			return k, !m.failing
		}
	}
	return known{}, false
}

// forked returns what l has in common with two lists that parted after step i. Both had one more turn. A list that has
// more counts as beginning alike once answers for such lists agreed. The caller holds beginnings.mu.
func (s *Source) forked(m *template, l *list, i int) (known, bool) {
	fork, ok := s.cache.get(l.forkOf(i))
	if !ok || fork.tokens == nil {
		return known{}, false
	}
	if c := m.classes[l.forkKind(i)]; i < len(l.steps)-2 && (c == nil || c.agreed < agreeFirst || c.dropped > 0) {
		return known{}, false
	}
	return known{tokens: fork.tokens, at: l.steps[i].at, from: l.forkOf(i)}, true
}

// grown returns what is kept of the answer for l's first turns up to step i. The caller holds beginnings.mu.
func (s *Source) grown(m *template, l *list, i int) (known, bool) {
	c := m.classes[l.kindOf(i)]
	if c == nil || c.agreed < agreeFirst {
		return known{}, false
	}
	a, ok := s.cache.get(l.steps[i].key)
	if !ok {
		return known{}, false
	}
	n := len(a.tokens) - c.dropped - margin
	if n < leastBeginning || len(a.features) > 0 {
		return known{}, false
	}
	return known{tokens: a.tokens[:n], at: l.steps[i].at, own: true, from: l.steps[i].key}, true
}

// remember keeps an engine's answer for a list, and learns from it what lists have in common.
func (s *Source) remember(model string, l *list, found *Found) {
	a := &answer{tokens: found.Tokens, features: found.Features}
	if l.plain && len(a.features) == 0 {
		s.check(model, l, a)
		s.learn(model, l, a)
		s.fork(l, a)
	}
	s.cache.put(l.key(), a)
}

// check compares an answer with what was, or would have been, said of it before it was there.
func (s *Source) check(model string, l *list, a *answer) {
	said, _ := s.beginning(model, l)
	if said.tokens == nil {
		return
	}
	b := &s.beginnings
	b.checked.Add(1)
	alike := common(said.tokens, a.tokens)
	b.mu.Lock()
	m := b.of(model)
	turned := false
	if alike == len(said.tokens) {
		if m.failing {
			m.agreed++
		}
		if m.agreed >= agreeAgain {
			m.failing, m.agreed, turned = false, 0, true
		}
		b.mu.Unlock()
		if turned && s.Log != nil {
			s.Log.Info("known beginnings of chats agree with the engine's token ids again", "model", model)
		}
		return
	}
	b.differed.Add(1)
	turned = !m.failing
	m.failing, m.agreed = true, 0
	clear(m.classes) // what was learned of the template does not hold
	b.mu.Unlock()
	s.cache.remove(said.from)
	if turned && s.Log != nil {
		s.Log.Warn("a known beginning of a chat differs from the engine's token ids: the model's template rewrites earlier turns; "+
			"beginnings are not used until twenty in a row agree", "model", model, "position", alike, "known", len(said.tokens))
	}
}

// learn books what was kept of the answer for the longest list that l's begins with, and of what it has in common with
// others.
func (s *Source) learn(model string, l *list, a *answer) {
	b := &s.beginnings
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.of(model)
	grown, forked := false, false
	for i := len(l.steps) - 2; i >= 0 && !(grown && forked); i-- {
		if l.rewritten(i) {
			continue
		}
		if earlier, ok := s.cache.get(l.steps[i].key); ok && !grown && len(earlier.features) == 0 {
			grown = true
			m.learn(l.kindOf(i), len(earlier.tokens)-common(earlier.tokens, a.tokens))
		}
		if fork, ok := s.cache.get(l.forkOf(i)); ok && !forked && fork.tokens != nil {
			forked = true
			m.learn(l.forkKind(i), len(fork.tokens)-common(fork.tokens, a.tokens))
		}
	}
}

func (m *template) learn(kind key, dropped int) {
	c := m.classes[kind]
	if c == nil {
		if len(m.classes) >= maxClasses {
			for other := range m.classes { // any: clients that make up arguments make others learn again, no more
				delete(m.classes, other)
				break
			}
		}
		c = &class{}
		m.classes[kind] = c
	}
	if dropped > mostDropped {
		c.agreed = 0
		return
	}
	c.agreed++
	c.dropped = max(c.dropped, dropped)
}

// fork notes where l's last turn begins, and finds the ids before it once two lists have parted there.
func (s *Source) fork(l *list, a *answer) {
	i := len(l.steps) - 2
	if i < 0 || len(l.head) == 0 || l.rewritten(i) {
		return
	}
	k := l.forkOf(i)
	before, ok := s.cache.get(k)
	if ok && before.tokens != nil {
		return
	}
	next := &answer{head: l.head, from: l.key()}
	if ok {
		alike := common(before.head, l.head)
		if other, there := s.cache.get(before.from); there && alike <= mostAlike && before.from != l.key() {
			if n := common(other.tokens, a.tokens) - alike - margin; n >= leastBeginning {
				next = &answer{tokens: slices.Clone(a.tokens[:n])}
			}
		} else if bytes.Equal(before.head, l.head) && there {
			return
		}
		s.cache.remove(k)
	}
	s.cache.put(k, next)
}

// common is how many elements a and b have in common at their beginnings.
func common[T comparable](a, b []T) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// standIn is the first of the ids that stand for text whose ids are not known: beyond any vocabulary.
const standIn block.Token = 1 << 31

// Bytes of text that an id stands for, at least and at most: tools stand among the ids of a beginning, and not in its
// turns.
const leastStride, mostStride = 2, 8

// withStandIns returns the ids of l as far as they are known, and after them ids that stand for the turns that follow,
// as many as so much text had before: so the router knows about how long the prompt is. A chat that grows on from the
// same beginning has the same ones again, and more: it is expected where it was sent before. No engine announces them.
func (k *known) withStandIns(l *list) Found {
	const part = 256 // of a byte, in which strides are counted
	stride := bytesPerToken * part
	if k.at > 0 {
		stride = min(max(k.at*part/len(k.tokens), leastStride*part), mostStride*part)
	}
	rest := l.turns[k.at:]
	n := len(rest) * part / stride
	ids := make([]block.Token, 0, len(k.tokens)+n)
	ids = append(ids, k.tokens...)
	for i := range n {
		h := uint32(2166136261) // FNV-1a
		for _, c := range rest[i*stride/part : (i+1)*stride/part] {
			h = (h ^ uint32(c)) * 16777619
		}
		ids = append(ids, standIn|block.Token(h))
	}
	return Found{Tokens: ids, Sure: len(k.tokens), Outcome: Beginning}
}
