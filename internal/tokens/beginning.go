package tokens

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/placement"
)

// A growing chat repeats its first turns in every request, and many chats begin with the same system prompt. Suppose
// two lists of turns have the same first turns. The engine's answers for both lists begin with the same ids. These ids
// are called a beginning. A third list with the same first turns has the same beginning, if the template renders a turn
// in the same way whatever follows the turn. Some templates change earlier turns: they drop the assistant's earlier
// thoughts, or print a date. So beginnings are used only after engines' answers agreed for lists of the same kind.
// Every further answer is compared with the known beginning. A difference stops the use of beginnings for the model.
// The place after which two lists with the same first turns differ is called a fork.

const (
	// margin is how many ids at the end of a beginning are not used: the tokenizer may join them with the next text.
	margin = 8
	// mostDropped is how many of the last ids of a list's answer may be missing in the answer for a longer list. The
	// missing ids are normally the generation prompt. A template that drops more ids rewrites earlier turns.
	mostDropped = 64
	// leastBeginning is the length of the shortest beginning that is remembered, in ids. With vLLM's default block size,
	// 16 ids are one block.
	leastBeginning = 16
	// The texts of two lists that differ after some turn may by chance go on with the same bytes. mostAlike is the largest
	// number of such bytes with which a beginning is learned. With more bytes, the two answers do not show where the
	// beginning ends, because each of the bytes may be an id that both answers have.
	mostAlike = 16
	// agreeFirst is how many answers must agree before beginnings are used for a kind of list. agreeAgain is how many
	// answers of a model must agree in a row after a difference.
	agreeFirst = 2
	agreeAgain = 20
	// maxClasses bounds the kinds of lists of a model. Clients choose the template's arguments, so they could make any
	// number of kinds.
	maxClasses = 512
)

// beginnings records, by model, how templates treat the turns of growing lists. It is safe for concurrent use.
type beginnings struct {
	checked, differed atomic.Uint64
	growing           atomic.Uint64 // number of requests for which asksOn applied sampleEvery

	mu     sync.Mutex
	models map[string]*template // guarded by mu, also the templates; one template for each model that the fleet serves
}

// template records how a model's templates treat the turns of a list when it grows.
type template struct {
	classes map[key]*class
	failing bool // an answer differed from the known beginning
	agreed  int  // while failing: number of answers in a row that agreed
}

// class records how a model's templates treat the turns of one kind of list. kindOf and forkKind define the kinds.
type class struct {
	dropped int // when a list grew: the largest number of last ids of its old answer that its new answer lacked
	agreed  int // number of answers that agreed
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

// off returns the models whose beginnings are not used at present.
func (b *beginnings) off() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return failingOf(b.models, func(m *template) bool { return m.failing })
}

// known is the known beginning of a list's ids.
type known struct {
	tokens []block.Token
	at     int // number of bytes of the turns that tokens cover
	// own: tokens come from the answer for an earlier state of the same chat. Otherwise tokens come from a fork.
	own  bool
	from key // key of the answer or of the fork in the cache
}

// kindOf returns the kind of a list that grows from step i of l on. Lists of one kind have the same template arguments
// and the same roles on both sides of step i, and either all or none of them have a later turn of the user.
func (l *promptTurns) kindOf(i int) key {
	k := l.class
	k[0] ^= byte(l.steps[i].last)
	k[1] ^= byte(l.steps[i].next)
	if l.steps[len(l.steps)-1].users > l.steps[i].users {
		k[2] ^= 1
	}
	return k
}

// forkKind returns the kind of a list that diverges from other lists after step i of l.
func (l *promptTurns) forkKind(i int) key {
	k := l.kindOf(i)
	k[3] ^= 1
	return k
}

// forkOf returns the key of a fork. The cache has, under this key, the common ids of lists that diverge after step i
// and whose next turns have the same role.
func (l *promptTurns) forkOf(i int) key {
	k := l.steps[i].key
	k[0] ^= 0xf0
	k[1] ^= byte(l.steps[i].next)
	return k
}

// rewritten reports whether templates may now render the turns up to step i differently: some templates drop the
// assistant's thoughts when the user has spoken again.
func (l *promptTurns) rewritten(i int) bool {
	return l.steps[i].open && l.steps[len(l.steps)-1].users > l.steps[i].users
}

// beginning returns the longest known beginning of l's ids. used is false if beginnings of this model are not used now,
// or if no beginning is known.
func (s *Source) beginning(model string, l *promptTurns) (found known, used bool) {
	if !l.textChat {
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

// forked returns the ids that l has in common with two lists that diverged after step i. Both lists had one more turn
// after step i. If l has more than one turn after step i, the ids are returned only after answers for such lists
// agreed. The caller holds beginnings.mu.
func (s *Source) forked(m *template, l *promptTurns, i int) (known, bool) {
	fork, ok := s.cache.get(l.forkOf(i))
	if !ok || fork.tokens == nil {
		return known{}, false
	}
	if c := m.classes[l.forkKind(i)]; i < len(l.steps)-2 && (c == nil || c.agreed < agreeFirst || c.dropped > 0) {
		return known{}, false
	}
	return known{tokens: fork.tokens, at: l.steps[i].at, from: l.forkOf(i)}, true
}

// grown takes the answer for l's turns up to step i, and returns the part of this answer that stays the same when the
// list grows. The caller holds beginnings.mu.
func (s *Source) grown(m *template, l *promptTurns, i int) (known, bool) {
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

// remember keeps an answer for a list, and learns from the answer which ids lists have in common.
func (s *Source) remember(model string, l *promptTurns, found *Found) {
	a := &answer{tokens: found.Tokens, features: found.Features}
	if l.textChat && len(a.features) == 0 {
		s.check(model, l, a)
		s.learn(model, l, a)
		s.fork(l, a)
	}
	s.cache.put(l.key(), a)
}

// check compares an answer with the known beginning of its list.
func (s *Source) check(model string, l *promptTurns, a *answer) {
	expected, _ := s.beginning(model, l)
	if expected.tokens == nil {
		return
	}
	b := &s.beginnings
	b.checked.Add(1)
	alike := common(expected.tokens, a.tokens)
	b.mu.Lock()
	m := b.of(model)
	turned := false
	if alike == len(expected.tokens) {
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
	clear(m.classes) // what was learned of the template is wrong
	b.mu.Unlock()
	s.cache.remove(expected.from)
	if turned && s.Log != nil {
		s.Log.Warn("a known beginning of a chat differs from the engine's token ids: the model's template rewrites earlier "+
			"turns; "+
			"beginnings are not used until twenty in a row agree", "model", model, "position", alike, "known",
			len(expected.tokens))
	}
}

// learn compares the answer for l with two known beginnings: the answer for the longest earlier list, and the longest
// fork. learn records how much of each beginning is in the answer for l.
func (s *Source) learn(model string, l *promptTurns, a *answer) {
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

// learn records for one kind of list how many ids were dropped.
func (m *template) learn(kind key, dropped int) {
	c := m.classes[kind]
	if c == nil {
		if len(m.classes) >= maxClasses {
			for other := range m.classes { // drops any one class, which can be learned from later answers
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

// fork records the answer at the place where l's last turn begins. If another list has diverged from l at this place,
// fork keeps the ids that both answers have in common.
func (s *Source) fork(l *promptTurns, a *answer) {
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

// common returns how many elements a and b have in common at their beginnings.
func common[T comparable](a, b []T) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// standIn is the first of the ids that stand for text with unknown ids. It is larger than every id of a vocabulary.
const standIn block.Token = 1 << 31

// leastStride and mostStride bound how many bytes of text one stand-in id represents. The known part may have too few
// bytes for its ids, because these ids also cover tools, which are not in the turns.
const leastStride, mostStride = 2, 8

// withStandIns returns the known ids of l, and after them stand-in ids for the rest of the turns, in about the same
// ratio of ids to bytes. So the router knows the prompt's length approximately. The same text gets the same stand-ins
// in the chat's next request. So the router expects these turns at the worker that received them before. No engine
// announces stand-ins.
func (k *known) withStandIns(l *promptTurns) Found {
	const part = 256 // strides are counted in 1/256 of a byte
	stride := placement.BytesPerToken * part
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
