package demo

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// The workload: agents of a few kinds, each kind with a long system prompt and tools of its own, each conversation
// growing by what the user and the engine say. The sizes are those of small coding agents, cut to what half a minute
// allows: a cached prompt saves most of the work, and no engine can hold all conversations at once.
const (
	agentKinds    = 6
	conversations = 40
	turns         = 7
	systemWords   = 900
	turnWords     = 240
	answerTokens  = 24
)

// message is one message of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// conversation is one agent's work.
type conversation struct {
	id     int
	tools  json.RawMessage
	asks   []string // what the user says, turn by turn
	system string
}

// workload returns the conversations, the same for the same seed.
func workload(seed uint64) []conversation {
	type kind struct {
		system string
		tools  json.RawMessage
	}
	kinds := make([]kind, agentKinds)
	for i := range kinds {
		random := rand.New(rand.NewPCG(seed, uint64(1000+i)))
		kinds[i] = kind{
			system: fmt.Sprintf("You are agent %d. ", i) + text(random, systemWords),
			tools:  tools(random, i),
		}
	}
	out := make([]conversation, conversations)
	for i := range out {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		k := kinds[i%agentKinds]
		out[i] = conversation{id: i, tools: k.tools, system: k.system}
		for t := range turns {
			out[i].asks = append(out[i].asks, fmt.Sprintf("Task %d, step %d: ", i, t)+text(random, turnWords/2+random.IntN(turnWords)))
		}
	}
	return out
}

// tools are what the agents of one kind may call.
func tools(random *rand.Rand, kind int) json.RawMessage {
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
			Name: fmt.Sprintf("tool_%d_%d", kind, i), Description: text(random, 25),
			Parameters: map[string]any{"type": "object", "properties": map[string]any{"input": map[string]any{"type": "string", "description": text(random, 10)}}},
		}})
	}
	raw, err := json.Marshal(list)
	if err != nil {
		panic("bug: marshal the demo's tools: " + err.Error())
	}
	return raw
}

var syllables = strings.Fields("ka lo mi ren tas ver du pol esh na gri for tem ula bin cor set wa lin mo der pra zu hal kin")

// text returns so many made-up words.
func text(random *rand.Rand, words int) string {
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

// body is the chat request with history so far.
func (c *conversation) body(history []message) []byte {
	raw, err := json.Marshal(map[string]any{
		"model": model, "messages": history, "tools": c.tools, "max_tokens": answerTokens, "stream": true,
		"stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		panic("bug: marshal a demo request: " + err.Error())
	}
	return raw
}
