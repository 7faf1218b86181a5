package indexer

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
)

const (
	// maxTokens bounds the tokens of a prompt: four times the longest context of the models of today.
	maxTokens = 4 << 20
	// maxKeys bounds the keys of a prompt: maxTokens in blocks of 16.
	maxKeys = maxTokens / 16
	// maxNames bounds the workers that one question names, and maxText a name in bytes.
	maxNames = 16384
	maxText  = 1024
)

// question asks how much of a prompt each worker has. It is ScoreRequest of indexer.proto, and the body of /query. The
// prompt has one of four forms: tokens, keys, text or chat.
type question struct {
	model, group, lora, salt, extra string

	tokens    []block.Token
	keys      []block.Key
	hasKeys   bool
	blockSize int
	algorithm string
	text      string
	hasText   bool
	body      []byte      // the JSON body of a chat or of a completion
	dialect   api.Dialect // of body
	workers   []string    // score these; empty: every worker that has the first block
	tenant    bool        // the client speaks as clients of Mooncake's conductor do
	id        uint64      // comes back in the answer

	// Scratch memory of the answer.
	read    *api.Request
	request warmpath.Request
	lookup  warmpath.Lookup
	wanted  map[string]struct{}
	answer  answer
}

// reset makes q empty, and keeps the memory of its lists unless they are long.
func (q *question) reset() {
	tokens, keys, workers, matches, scores, wanted := q.tokens[:0], q.keys[:0], q.workers[:0], q.lookup.Matches[:0], q.answer.scores[:0], q.wanted
	if cap(tokens) > 1<<16 {
		tokens = nil
	}
	if cap(keys) > 1<<14 {
		keys = nil
	}
	clear(workers[:cap(workers)])
	clear(scores[:cap(scores)])
	clear(wanted)
	read := q.read
	*q = question{tokens: tokens, keys: keys, workers: workers, wanted: wanted, read: read}
	q.lookup.Matches, q.answer.scores = matches, scores
}

// check returns an error if the question has not exactly one form of a prompt.
func (q *question) check() error {
	forms := 0
	for _, has := range [...]bool{len(q.tokens) > 0, q.hasKeys, q.hasText, q.body != nil} {
		if has {
			forms++
		}
	}
	switch {
	case forms == 0:
		return errors.New("the question has no prompt: send token_ids, keys, prompt or messages")
	case forms > 1:
		return errors.New("the question has its prompt in several forms: send one of token_ids, keys, prompt and messages")
	case q.hasKeys && q.blockSize == 0:
		return errors.New("keys need block_size: the number of tokens of a block from which they were made")
	}
	for _, name := range [...]struct{ what, is string }{{"model", q.model}, {"group", q.group}, {"lora", q.lora}, {"cache_salt", q.salt}, {"extra_key", q.extra}} {
		if err := named(name.what, name.is); err != nil {
			return err
		}
	}
	return nil
}

// answer is what each worker has: ScoreResponse of indexer.proto.
type answer struct {
	model     string
	group     string
	blockSize int
	tokens    int // of the prompt; 0 if only its keys are known
	scores    []score
	id        uint64   // of the question
	code      uint32   // of gRPC: why there is no answer; 0 is a success
	problem   string   // the text of code
	unknown   []string // workers of the question that do not serve the model
	process   uint64   // of the service; only in the first answer of Ask
}

// score is what one rank of a worker has. The numbers are tokens.
type score struct {
	worker  string
	rank    int
	matched int
	tier    [block.NumTiers]int
	full    int
	trust   fleet.Trust
}

func (q *question) appendTo(dst []byte) []byte {
	dst = appendText(dst, 1, q.model)
	dst = appendPacked(dst, 2, q.tokens)
	dst = appendPackedFixed(dst, 3, q.keys)
	dst = appendNumber(dst, 4, q.blockSize)
	dst = appendText(dst, 5, q.algorithm)
	dst = appendText(dst, 6, q.text)
	dst = appendText(dst, 7, string(q.body))
	dst = appendText(dst, 8, q.lora)
	dst = appendText(dst, 9, q.salt)
	dst = appendText(dst, 10, q.extra)
	dst = appendText(dst, 11, q.group)
	for _, w := range q.workers {
		dst = protowire.AppendTag(dst, 12, protowire.BytesType)
		dst = protowire.AppendString(dst, w)
	}
	return appendNumber(dst, 14, q.id)
}

func (q *question) decode(b []byte) (err error) {
	return eachField(b, func(f *field) error {
		switch f.id {
		case 1:
			q.model = f.text()
		case 2:
			q.tokens, err = f.appendNumbers(q.tokens, maxTokens)
		case 3:
			q.hasKeys = true
			q.keys, err = appendFixed(q.keys, f, maxKeys)
		case 4:
			q.blockSize = int(min(f.small(), block.MaxSize+1))
		case 5:
			q.algorithm = f.text()
		case 6:
			q.text, q.hasText = f.text(), true
		case 7:
			q.body, q.dialect = append([]byte{}, f.bytes...), api.OpenAIChat
		case 8:
			q.lora = f.text()
		case 9:
			q.salt = f.text()
		case 10:
			q.extra = f.text()
		case 11:
			q.group = f.text()
		case 12:
			if len(q.workers) == maxNames {
				return over(maxNames+1, maxNames)
			}
			q.workers = append(q.workers, f.text())
		case 13:
			q.tokens, err = appendFixed32(q.tokens, f, maxTokens)
		case 14:
			q.id = f.number
		}
		return err
	})
}

func (a *answer) appendTo(dst []byte) []byte {
	dst = appendText(dst, 1, a.model)
	dst = appendNumber(dst, 2, a.blockSize)
	dst = appendNumber(dst, 3, a.tokens)
	for i := range a.scores {
		dst = appendInner(dst, 4, &a.scores[i])
	}
	dst = appendNumber(dst, 5, a.id)
	dst = appendNumber(dst, 6, a.code)
	dst = appendText(dst, 7, a.problem)
	for _, name := range a.unknown {
		dst = appendText(dst, 8, name)
	}
	return appendHash(dst, 9, a.process)
}

func (s *score) appendTo(dst []byte) []byte {
	dst = appendText(dst, 1, s.worker)
	dst = appendNumber(dst, 2, s.rank)
	dst = appendNumber(dst, 3, s.matched)
	for t, n := range s.tier {
		dst = appendNumber(dst, protowire.Number(4+t), n)
	}
	dst = appendNumber(dst, 8, s.trust)
	return appendNumber(dst, 9, s.full)
}

// decodeNamed decodes s, and gives the worker's name to named, which must not keep it. The client looks the name up; a
// copy of each name would be most of the work.
func (s *score) decodeNamed(b []byte, named func(name []byte)) error {
	return eachField(b, func(f *field) error {
		switch n := int(f.small() & 0x7fffffff); f.id {
		case 1:
			named(f.bytes)
		case 2:
			s.rank = n
		case 3:
			s.matched = n
		case 4, 5, 6, 7:
			s.tier[f.id-4] = n
		case 8:
			s.trust = fleet.Trust(min(f.small(), uint32(fleet.TrustExact)))
		case 9:
			s.full = n
		}
		return nil
	})
}

// groupMark separates a group from the name of a model or a worker in the fleet. No such name has this character.
const groupMark = "\x1f"

// pooled returns the name under which the fleet knows a model or a worker of a group. A group is a tenant of Mooncake,
// or a routing group of Dynamo: equal prompts of two groups share nothing, and a worker may be in several groups.
// A name with the mark gets a name that nothing has, so it reaches no other group.
func pooled(name, group string) string {
	if strings.Contains(name, groupMark) || strings.Contains(group, groupMark) {
		return groupMark
	}
	if group == "" || group == defaultGroup {
		return name
	}
	return name + groupMark + group
}

// Bare returns the fleet's name of a model or a worker without its group.
func Bare(name string) string { return bare(name) }

// bare is Bare.
func bare(name string) string {
	out, _ := unpooled(name)
	return out
}

// defaultGroup is the name of the group of everything without a group.
const defaultGroup = "default"

// unpooled returns the model and the group of a name in the fleet.
func unpooled(name string) (model, group string) {
	for i := range len(name) {
		if name[i] == groupMark[0] {
			return name[:i], name[i+1:]
		}
	}
	return name, defaultGroup
}

// named checks a name that a client gives.
func named(what, name string) error {
	if len(name) > maxText {
		return fmt.Errorf("%s has %d bytes, more than %d", what, len(name), maxText)
	}
	for i := range len(name) {
		if name[i] < ' ' {
			return fmt.Errorf("%s has a control character", what)
		}
	}
	return nil
}
