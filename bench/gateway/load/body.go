package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"strings"
)

// most is the largest number of different bodies, by workload. If there are more requests, they use the same bodies
// again. A body of workload b has 33 KB.
var most = map[string]int{"a": 20000, "b": 4000, "8k": 1000, "64k": 300, "512k": 60}

// lengths has the lengths of the prompts of the workloads whose prompts share nothing, in bytes.
var lengths = map[string]int{"a": 60, "8k": 8 << 10, "64k": 64 << 10, "512k": 512 << 10}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// makeBodies makes the bodies of n requests before the measurement, so that the client needs little processor time
// while it measures. Every run has the same bodies.
func makeBodies(n int) [][]byte {
	r := rand.New(rand.NewSource(42))
	var vocabulary, prefixes []string
	for range 3000 {
		word := make([]byte, 2+r.Intn(8))
		for i := range word {
			word[i] = byte('a' + r.Intn(26))
		}
		vocabulary = append(vocabulary, string(word))
	}
	for range 50 {
		prefixes = append(prefixes, prose(r, vocabulary, 24<<10))
	}
	r = rand.New(rand.NewSource(1))
	var bodies [][]byte
	for i := range min(n, most[*work]) {
		messages := []message{{"user", fmt.Sprintf("%d ", i) + prose(r, vocabulary, lengths[*work])}}
		if *work == "b" {
			messages = []message{{"system", prefixes[r.Intn(len(prefixes))]}, {"user", prose(r, vocabulary, 8<<10)}}
		}
		body, err := json.Marshal(struct {
			Model     string          `json:"model"`
			Stream    bool            `json:"stream"`
			MaxTokens int             `json:"max_tokens"`
			Options   map[string]bool `json:"stream_options"`
			Messages  []message       `json:"messages"`
		}{"mock", true, 64, map[string]bool{"include_usage": true}, messages})
		if err != nil {
			panic(fmt.Sprintf("bug: encode a body: %v", err))
		}
		bodies = append(bodies, body)
	}
	return bodies
}

// prose returns n bytes of random words.
func prose(r *rand.Rand, vocabulary []string, n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(vocabulary[r.Intn(len(vocabulary))])
		switch r.Intn(20) {
		case 0:
			b.WriteString(".\n")
		case 1:
			b.WriteString(", ")
		case 2:
			b.WriteString(` "x" `)
		default:
			b.WriteByte(' ')
		}
	}
	return b.String()[:n]
}
