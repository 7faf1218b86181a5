package mockengine

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/block"
)

// words has the words of the answers. They are lower-case ASCII, so that an answer that is cut anywhere is valid text.
var words = strings.Fields(`
	a about above across after again against all along also always among and another answer any are around as ask at
	away back be because been before began below between big block both bring build but by cache call came can carry
	change check city clear close cold come could count country cover cross cut day did do does done down draw drive
	each early earth end engine enough even every example eye face fact fall family far farm fast father feel few
	field find fire first five follow food for form found four free from full game gave get give go gold good great
	green ground group grow half hand hard has have head hear heat help here high him hold home hot hour house how
	hundred idea if in inch into island it just keep kind king know land large last late learn leave left less let
	letter life light like line list little live long look love low machine made main make many map mark match may
	mean measure memory might mile mind miss money month moon more morning most mother move much music must name
	near need never new next night north note nothing notice now number object of off often old on once one only
	open or order other our out over own page paper part pass path pattern people picture place plain plan plane
	plant play point port pose power press problem product pull put question quick rain ran reach read ready real
	record red remember rest right river road rock room round route rule run said same saw say school science sea
	second see seem self sentence serve set shape she ship short should show side simple since sing size sleep slow
	small snow so some song soon sound south space special spell stand star start state stay step still stood stop
	story street strong study such sun sure surface system table tail take talk teach tell ten test than that the
	them then there these they thing think this those though thought thousand three through time to together told
	took top toward town travel tree true try turn two under unit until up use usual very voice wait walk want war
	warm was watch water way we week weigh well went were west what wheel when where which while white who whole why
	wide will wind with wonder wood word work world would write year yes yet you young
`)

// answer is the answer to a request. The whole answer is made before the engine's first step for the request.
type answer struct {
	tokens []block.Token // all generated tokens; the last one is the end token if reason is not "length"
	text   int           // number of tokens that the client sees as text; later tokens are a tool call or the end token
	call   *toolCall     // a tool call instead of text; nil: none
	reason string        // value of finish_reason
	stop   string        // stop string that ended the answer; "": none
}

// toolCall is a tool call of the assistant.
type toolCall struct {
	id, name, arguments string
}

// answerOptions has the options that determine an answer.
type answerOptions struct {
	seed         uint64
	length       int  // length of the text in tokens; limit, ignoreEnd or a stop string may change it
	limit        int  // bound on all tokens of the answer: max_tokens, or what the context length leaves
	ignoreEnd    bool // the answer has limit tokens
	leadingSpace bool // the answer continues text, so it begins with a space
	stop         []string
	greedy       bool          // each token follows from the tokens before it; see greedyAnswer
	tool         string        // name of the tool that the answer calls; "": none
	scripted     []block.Token // the answer's tokens, from the field mock_answer; nil: made up
}

// answerTo returns the answer to prompt. The same prompt, choice and options always give the same answer.
func answerTo(prompt []block.Token, choice int, o *answerOptions) answer {
	if len(o.scripted) > 0 {
		tokens := slices.Clone(o.scripted[:min(len(o.scripted), o.limit)])
		return answer{tokens: tokens, text: len(tokens), reason: "length"}
	}
	var b [4]byte
	var h xxh3.Hasher
	for _, t := range prompt[max(0, len(prompt)-512):] {
		binary.LittleEndian.PutUint32(b[:], t)
		h.Write(b[:])
	}
	random := splitmix(h.Sum64() ^ o.seed ^ uint64(choice)*block.Golden ^ uint64(len(prompt))<<32)
	if o.tool != "" {
		return callAnswer(&random, o)
	}
	if o.greedy {
		return greedyAnswer(prompt, o)
	}
	length := o.length
	if o.ignoreEnd {
		length = o.limit
	}
	length = min(length, o.limit)
	text := make([]byte, 0, 6*length)
	for tokens := 0; tokens < length; {
		word := words[random.next()%uint64(len(words))]
		before := len(text)
		if before > 0 || o.leadingSpace {
			text = append(text, ' ')
		}
		text = append(text, word...)
		tokens += (len(text) - before + maxLetters - 1) / maxLetters
	}
	a := answer{reason: "length"}
	if at, found := firstStop(text, o.stop); at >= 0 {
		text, a.stop = text[:at], found
	}
	a.tokens = appendTokens(make([]block.Token, 0, length+2), text)
	a.tokens = a.tokens[:min(len(a.tokens), length)]
	a.text = len(a.tokens)
	if a.stop != "" && a.text < length || a.text < o.limit {
		a.tokens = append(a.tokens, tokenEnd)
		a.reason = "stop"
	} else {
		a.stop = ""
	}
	return a
}

// shortWords has the words that are one token together with the space before them.
var shortWords = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return len(w) >= maxLetters })

// greedyAnswer returns the answer to a request with temperature 0. As in a real engine, each token follows from all
// tokens before it. So the answer to a prompt with the beginning of an answer is the rest of this answer, at every
// engine with the same seed. The end has a chance of one in o.length at each token.
func greedyAnswer(prompt []block.Token, o *answerOptions) answer {
	state := splitmix(o.seed)
	step := func(t block.Token) { state ^= splitmix(block.Mix64(uint64(state) + uint64(t) + 1)) }
	for _, t := range prompt {
		step(t)
	}
	a := answer{reason: "length"}
	for len(a.tokens) < o.limit {
		random := state
		if draw := random.next(); !o.ignoreEnd && draw%uint64(o.length) == 0 {
			a.text, a.reason = len(a.tokens), "stop"
			a.tokens = append(a.tokens, tokenEnd)
			return a
		}
		a.tokens = appendTokens(a.tokens, " "+shortWords[random.next()%uint64(len(shortWords))])
		step(a.tokens[len(a.tokens)-1])
		if at, found := firstStop(appendText(nil, a.tokens), o.stop); at >= 0 {
			a.tokens = appendTokens(nil, appendText(nil, a.tokens)[:at])
			a.text, a.stop, a.reason = len(a.tokens), found, "stop"
			a.tokens = append(a.tokens, tokenEnd)
			return a
		}
	}
	a.text = len(a.tokens)
	return a
}

// callAnswer returns an answer that calls the tool with two words as arguments.
func callAnswer(random *splitmix, o *answerOptions) answer {
	input := words[random.next()%uint64(len(words))] + " " + words[random.next()%uint64(len(words))]
	call := &toolCall{name: o.tool, arguments: `{"input":"` + input + `"}`}
	call.id = "call_" + hex64(random.next())
	a := answer{call: call, reason: "tool_calls"}
	a.tokens = append(appendCall(nil, call.name, call.arguments), tokenEnd)
	if len(a.tokens) > o.limit {
		a.tokens, a.reason = a.tokens[:o.limit], "length"
	}
	return a
}

// firstStop returns the first stop string in text and its position. If text has no stop string, the position is -1.
func firstStop(text []byte, stop []string) (at int, found string) {
	at = -1
	for _, s := range stop {
		if s == "" {
			continue
		}
		if i := strings.Index(string(text), s); i >= 0 && (at < 0 || i < at) {
			at, found = i, s
		}
	}
	return at, found
}

// splitmix is the random number generator SplitMix64.
type splitmix uint64

func (s *splitmix) next() uint64 {
	*s += block.Golden
	return block.Mix64(uint64(*s))
}

func hex64(v uint64) string {
	const digits = "0123456789abcdef"
	var b [16]byte
	for i := range b {
		b[i] = digits[v>>(60-4*i)&15]
	}
	return string(b[:])
}
