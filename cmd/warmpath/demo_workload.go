package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
)

// These constants describe the workload: agents of several kinds. Each kind has a long system prompt and tools of its
// own. Each conversation grows by the text of the user or of a tool, and by the engine's answer. One kind is popular:
// every second conversation is of this kind. The sizes are distributed as in public traces of coding agents: most turns
// add little text, some turns add a whole file, and answers are short calls of tools. The sizes are reduced so that the
// demo takes half a minute.
const (
	demoUsers         = 48 // number of simultaneous users; each holds one conversation at a time
	agentKinds        = 8
	demoConversations = 68
	demoTurns         = 6
	systemWords       = 1500
	// The length of the text that a turn adds is log-normal. turnWords is the median in words. About one turn in six has
	// less than a third of the median, and about one in six has more than three times the median, up to mostWords.
	turnWords    = 350
	turnSpread   = 1.2
	mostWords    = 3000
	answerTokens = 24
)

// agentKindOf returns the kind of agent of a conversation. Every second conversation has kind 0; the conversations
// between take the other kinds in turn.
func agentKindOf(conversation int) int {
	if conversation%2 == 0 {
		return 0
	}
	return 1 + conversation/2%(agentKinds-1)
}

// demoMessage is one message of a chat.
type demoMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// demoConversation is one agent's work.
type demoConversation struct {
	id     int
	tools  json.RawMessage
	asks   []string // the user's texts, turn by turn
	system string
}

// demoWorkload returns the conversations. The same seed gives the same conversations.
func demoWorkload(seed uint64) []demoConversation {
	type kind struct {
		system string
		tools  json.RawMessage
	}
	kinds := make([]kind, agentKinds)
	for i := range kinds {
		random := rand.New(rand.NewPCG(seed, uint64(1000+i)))
		kinds[i] = kind{
			system: fmt.Sprintf("You are agent %d. ", i) + demoText(random, systemWords),
			tools:  demoTools(random, i),
		}
	}
	out := make([]demoConversation, demoConversations)
	for i := range out {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		k := kinds[agentKindOf(i)]
		out[i] = demoConversation{id: i, tools: k.tools, system: k.system}
		for t := range demoTurns {
			words := min(int(turnWords*math.Exp(turnSpread*random.NormFloat64())), mostWords)
			out[i].asks = append(out[i].asks, fmt.Sprintf("Task %d, step %d: ", i, t)+demoText(random, words))
		}
	}
	return out
}

// demoTools are the functions that the agents of one kind may call.
func demoTools(random *rand.Rand, kind int) json.RawMessage {
	type function struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		Parameters  map[string]any `json:"parameters"`
	}
	type tool struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}
	var list []tool
	for i := range 4 {
		list = append(list, tool{"function", function{
			Name: fmt.Sprintf("tool_%d_%d", kind, i), Description: demoText(random, 25),
			Parameters: map[string]any{"type": "object", "properties": map[string]any{"input": map[string]any{"type": "string", "description": demoText(random, 10)}}},
		}})
	}
	raw, err := json.Marshal(list)
	if err != nil {
		panic("bug: marshal the demo's tools: " + err.Error())
	}
	return raw
}

var syllables = strings.Fields("ka lo mi ren tas ver du pol esh na gri for tem ula bin cor set wa lin mo der pra zu hal kin")

// demoText returns the given number of made-up words.
func demoText(random *rand.Rand, words int) string {
	var b strings.Builder
	for i := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		for range 1 + random.IntN(3) {
			b.WriteString(syllables[random.IntN(len(syllables))])
		}
	}
	return b.String()
}

// body returns the chat request that contains the history so far.
func (c *demoConversation) body(history []demoMessage) []byte {
	raw, err := json.Marshal(map[string]any{
		"model": demoModel, "messages": history, "tools": c.tools, "max_tokens": answerTokens, "stream": true,
		"stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		panic("bug: marshal a demo request: " + err.Error())
	}
	return raw
}
