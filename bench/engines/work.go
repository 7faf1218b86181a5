package main

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"
)

// message is one message of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// step is one request of a talk (a conversation): the messages that it adds to the talk, and the number of tokens of
// its answer.
type step struct {
	talk   int
	adds   []message
	output int
	pause  time.Duration // time from the end of the talk's last answer to this request
}

// plan has the steps of each client. A client sends its steps in order, each step after the answer to the step before.
type plan [][]step

func (p plan) requests() int {
	n := 0
	for _, lane := range p {
		n += len(lane)
	}
	return n
}

// wordTokens is the average number of tokens of a word in the list words, with the space before it, in the tiny model's
// tokenizer.
const wordTokens = 1.363

// words has common English words. Texts are random sequences of these words.
var words = strings.Fields(`
able about access action active add after again all allow also always an and any apply area array as ask at attention
auto back base batch be beam before begin below best between block body book both build but by cache call can case
cause change check class clean clear close code come common compute config contain content context control copy core
correct cost count cover create current data date day decode default define depth device did different dimension
direct do does done down draw each early easy edge eight either else empty encode end enough enter error even event
ever every exact example expect extra face fact false far fast few field file fill final find fine first fit fix flag
float flow focus follow for form found four frame free from full function general generate get give given global go
good graph group had half hand has have head help here hidden high hold how if image in index input inside instance
into is it item its join just keep key kind know label language large last late layer learn least left length less let
level library like line list little load local log logic long look loop loss low made main make many map mask match
matrix max mean method might min mode model module more most move much must name need never new next no node none norm
not note now number object of off often on once one only open option or order other our out output over own page pair
part pass past path point position power present process prompt provide put query quick random range rate read ready
real reason reduce remove report request result return right row rule run same sample save say scale score search
second section see select send sequence series set shape shared short should show side simple single size skip small
so some source space special split stack stage start state step still stop store string such sum support sure system
table take target task tensor test text than that the their them then there these they this those three through time
to token too top total train tree true try turn two type under unique unit until up update us use user usual valid
value vector version very view vocab wait want was way we weight well what when where which while who why wide will
with within word work would write year yes you your zero`)

// writer draws random texts.
type writer struct{ *rand.Rand }

// newWriter returns a writer for a set and a round. Writers with the same arguments draw the same texts.
func newWriter(seed uint64, set string, round int) writer {
	h := fnv.New64a()
	h.Write([]byte(set))
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(round)))
	return writer{rand.New(rand.NewPCG(seed, h.Sum64()))}
}

// text returns a text of about the given number of tokens.
func (w writer) text(tokens int) string {
	var b strings.Builder
	for range max(1, int(float64(tokens)/wordTokens)) {
		b.WriteString(words[w.IntN(len(words))])
		b.WriteByte(' ')
	}
	return strings.TrimSpace(b.String())
}

// around returns a random number within a third of mean, for a length or a time. If all answers were equally long, the
// answers of an engine's clients would end at the same time. Then the clients would send their next requests at the
// same time, and their prompts would wait for each other. This effect is larger with a router that moves clients less
// often, and would hide the router's own effect on the time to the first token.
func (w writer) around(mean int) int { return mean - mean/3 + w.IntN(2*mean/3+1) }

// chats makes conversations of several turns, each with one of several system prompts. A client has all its
// conversations at the same time, and each request continues a random one of them.
type chats struct {
	talks, turns, systems, system, user, output int
}

func (c chats) plan(w writer, clients int) plan {
	system := make([]string, c.systems)
	for i := range system {
		system[i] = w.text(c.system)
	}
	lanes := make([][][]step, clients)
	for talk := range c.talks {
		steps := make([]step, c.turns)
		for turn := range steps {
			steps[turn] = step{talk: talk, adds: []message{{"user", w.text(w.around(c.user))}}, output: w.around(c.output)}
		}
		steps[0].adds = append([]message{{"system", system[talk%c.systems]}}, steps[0].adds...)
		lanes[talk%clients] = append(lanes[talk%clients], steps)
	}
	return w.interleave(lanes)
}

// interleave mixes the talks of each client at random, but keeps the order of the steps within a talk.
func (w writer) interleave(lanes [][][]step) plan {
	p := make(plan, len(lanes))
	for i, talks := range lanes {
		for len(talks) > 0 {
			t := w.IntN(len(talks))
			p[i] = append(p[i], talks[t][0])
			if talks[t] = talks[t][1:]; len(talks[t]) == 0 {
				talks[t] = talks[len(talks)-1]
				talks = talks[:len(talks)-1]
			}
		}
	}
	return p
}

// agents makes agents that call tools. Each step sends the result of a tool after the time that the tool takes. A
// client runs one agent after another. The results are messages with the role user. They cannot have the role tool,
// because such a message must follow a tool call, and a random model makes no tool calls.
type agents struct {
	talks, steps, kinds, system, result, output int
	pause                                       time.Duration
}

func (a agents) plan(w writer, clients int) plan {
	system := make([]string, a.kinds)
	for i := range system {
		system[i] = w.text(a.system)
	}
	p := make(plan, clients)
	for talk := range a.talks {
		for i := range a.steps {
			s := step{talk: talk, output: w.around(a.output)}
			if i == 0 {
				s.adds = []message{{"system", system[talk%a.kinds]}, {"user", w.text(w.around(a.result))}}
			} else {
				s.adds = []message{{"user", w.text(w.around(a.result))}}
				s.pause = time.Duration(w.around(int(a.pause/time.Millisecond))) * time.Millisecond
			}
			p[talk%clients] = append(p[talk%clients], s)
		}
	}
	return p
}

// prefixes makes single questions, each after one of several shared prefixes. Prefix i is drawn with weight (count/2 +
// i)^-skew, so the first prefixes are used a few times more often than the last ones.
type prefixes struct {
	requests, count, prefix, question, output int
	skew                                      float64
}

func (q prefixes) plan(w writer, clients int) plan {
	prefix := make([]string, q.count)
	for i := range prefix {
		prefix[i] = w.text(q.prefix)
	}
	draw := rand.NewZipf(w.Rand, max(q.skew, 1.01), float64(q.count)/2, uint64(q.count-1))
	p := make(plan, clients)
	for i := range q.requests {
		which := 0
		if q.count > 1 {
			which = int(draw.Uint64())
		}
		p[i%clients] = append(p[i%clients], step{talk: i, output: w.around(q.output), adds: []message{
			{"system", prefix[which]}, {"user", w.text(w.around(q.question))}}})
	}
	return p
}
