package tokens

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// key is a hash of everything that decides the tokens of a prompt, or of a prompt's beginning. It has 128 bits of
// SHA-256, so no tenant can construct a prompt with the same key as another tenant's prompt. With equal keys, one
// tenant's prompt would get the ids of the other tenant's prompt.
type key [16]byte

// promptTurns is a request's prompt in parts: first everything but the turns (model, template, tools, …), then one turn
// after another. If two prompts have the same first part and the same first turns, the steps of these turns have the
// same keys.
type promptTurns struct {
	turns []byte // the turns as spelled in the request's body; valid as long as the body is valid
	steps []step // steps[0] is before the first turn; a prompt that is no chat has only this step
	class key    // hash of the template's arguments, without the turns and the tools' texts
	head  []byte // beginning of the last turn's text, as spelled: at most headBytes

	// textChat is true if the prompt is a chat of known roles without media. Only such a prompt can have a known beginning
	// (see beginning.go).
	textChat bool
}

// step is the state of the list of turns after one of the turns.
type step struct {
	key        key
	at         int  // number of bytes of the turns up to here, as spelled
	last, next role // role of the last turn up to here, and of the next turn
	users      int  // number of the user's turns up to here
	open       bool // the assistant has spoken after the user's last turn
}

// role says who speaks in a turn. 0 means that there is no turn.
type role byte

const (
	roleSystem    role = 's' // also used for the role developer
	roleUser      role = 'u'
	roleAssistant role = 'a'
	roleTool      role = 't'
	roleOther     role = 'o'
)

func roleOf(raw []byte) role {
	switch string(raw) {
	case `"user"`:
		return roleUser
	case `"assistant"`:
		return roleAssistant
	case `"system"`, `"developer"`:
		return roleSystem
	case `"tool"`:
		return roleTool
	}
	return roleOther
}

const (
	// headBytes is how many bytes of the beginning of the last turn's text are kept. These bytes show where two texts
	// begin to differ. If the kept bytes are equal, the texts are treated as equal.
	headBytes = 32
	// Of a long list, the first firstSteps steps and at least the last lastSteps steps are kept: conversations diverge
	// near the beginning, and grow at the end.
	firstSteps = 8
	lastSteps  = 120
	// maxTurns is the number of turns that are read one by one. Each turn costs a hash: a body of 4 MiB has room for
	// 1.4 million turns, which would take 0.3 s. A list with more turns has no known beginning, and its text ends after
	// maxTurns turns.
	maxTurns = 4096
)

// key returns the key of the whole prompt.
func (l *promptTurns) key() key { return l.steps[len(l.steps)-1].key }

// turnsOf reads r's prompt. The order of the fields in the body does not matter. Every field goes into the key unless
// it is known not to change the tokens. So an unknown field can cause a miss, but never wrong ids.
func turnsOf(r *api.Request) *promptTurns {
	h := sha256.New()
	if r.TooManyMembers() { // too many members to sort
		_, _ = h.Write([]byte{byte(r.Dialect), wholeBody})
		_, _ = h.Write(r.Body())
		return &promptTurns{steps: []step{{key: sum(h)}}}
	}
	type member struct{ name, value []byte }
	var (
		front []member
		turns []byte
		seen  byte
	)
	for name, value := range r.Members {
		switch s := string(name); {
		case indifferent[s]:
		case r.Dialect == api.OpenAIChat && s == "messages":
			turns = value
			seen++
		case r.Dialect == api.OpenAICompletions && s == "prompt", r.Dialect == api.SGLangGenerate && s == "text":
			front = append(front, member{name, onlyText(value)})
		default:
			front = append(front, member{name, value})
		}
	}
	slices.SortStableFunc(front, func(a, b member) int { return bytes.Compare(a.name, b.name) })
	kind, whole := seen, seen != 1 || turns[0] != '[' || longer(turns, maxTurns)
	if whole {
		kind = wholeTurns + min(seen, 2)
	}
	_, _ = h.Write([]byte{byte(r.Dialect), kind})
	for _, m := range front {
		writePart(h, m.name)
		writePart(h, m.value)
	}
	l := &promptTurns{steps: []step{{key: sum(h)}}}
	if whole {
		if turns != nil { // all turns together count as one turn
			l.add(h, turns, 0, roleOther)
		}
		return l
	}
	l.turns, l.textChat = turns, !r.Multimodal
	for at, turn := range jsonscan.Items(turns) {
		role, text := readTurn(turn)
		l.add(h, turn, at+len(turn), role)
		l.head = text[:min(len(text), headBytes)]
		l.textChat = l.textChat && role != roleOther
	}
	l.head = bytes.Clone(l.head)
	l.class = classOf(r, h)
	return l
}

// The input of a prompt's first hash begins with the dialect and a second byte. The second byte says how the turns are
// hashed: 1 means one by one; wholeTurns plus the number of fields with turns (at most 2) means as one text; wholeBody
// means as a part of the whole body.
const (
	wholeTurns = 2
	wholeBody  = 255
)

// longer reports whether a JSON array has more than n items.
func longer(array []byte, n int) bool {
	for range jsonscan.Items(array) {
		if n--; n < 0 {
			return true
		}
	}
	return false
}

// add appends the step that describes the list after turn. at is the position in l.turns at which turn ends, and r is
// the role of turn.
func (l *promptTurns) add(h hash.Hash, turn []byte, at int, r role) {
	before := &l.steps[len(l.steps)-1]
	before.next = r
	next := step{at: at, last: r, users: before.users, open: before.open}
	switch r {
	case roleUser:
		next.users++
		next.open = false
	case roleAssistant:
		next.open = true
	}
	h.Reset()
	_, _ = h.Write(before.key[:])
	_, _ = h.Write(turn)
	next.key = sum(h)
	if len(l.steps) == firstSteps+2*lastSteps {
		l.steps = append(l.steps[:firstSteps], l.steps[firstSteps+lastSteps:]...)
	}
	l.steps = append(l.steps, next)
}

// readTurn returns a turn's role and its text. The text is spelled as in the body, and begins after the opening quote.
// If the turn has no text, the text is nil.
func readTurn(turn []byte) (r role, text []byte) {
	r = roleOther
	for name, value := range jsonscan.Members(turn) {
		switch string(name) {
		case "role":
			r = roleOf(value)
		case "content":
			text = textOf(value)
		}
	}
	return r, text
}

// textOf returns the text at the beginning of a content: the content itself if it is a text, or the text of its first
// part.
func textOf(content []byte) []byte {
	if len(content) > 0 && content[0] == '"' {
		return content[1:]
	}
	for _, first := range jsonscan.Items(content) {
		var text []byte
		for name, value := range jsonscan.Members(first) {
			if string(name) == "text" && value[0] == '"' {
				text = value[1:]
			}
		}
		return text
	}
	return nil
}

// classFields are the arguments of a template except the turns. These arguments may change how the template renders
// turns.
var classFields = []api.Field{api.FieldChatTemplate, api.FieldChatTemplateKwargs, api.FieldReasoningEffort,
	api.FieldAddGenerationPrompt, api.FieldContinueFinalMessage, api.FieldAddSpecialTokens}

func classOf(r *api.Request, h hash.Hash) key {
	h.Reset()
	for _, f := range classFields {
		writePart(h, r.Raw(f))
	}
	with := byte(0)
	if len(r.Raw(api.FieldTools)) > 0 {
		with |= 1
	}
	if len(r.Raw(api.FieldDocuments)) > 0 {
		with |= 2
	}
	_, _ = h.Write([]byte{with})
	return sum(h)
}

// writePart writes the length of b and then b. So different lists of parts have different hashes.
func writePart(h hash.Hash, b []byte) {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(b)))
	_, _ = h.Write(n[:])
	_, _ = h.Write(b)
}

func sum(h hash.Hash) (k key) {
	var whole [sha256.Size]byte
	copy(k[:], h.Sum(whole[:0]))
	return k
}
