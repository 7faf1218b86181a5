package testenv_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/test/testenv"
)

// These are the settings of both engines, the mock engine and vLLM. Two requests of the greatest length fill the 64
// usable blocks of 32 tokens, so nearly every request evicts blocks. The token budget of a step is small, so that
// prompts are computed in chunks.
const (
	labBlock    = 32
	labBlocks   = 65 // one of the blocks is the null block, which vLLM never uses
	labModelLen = 1024
	labBatch    = 256
	labSeqs     = 8
)

// TestTheMockEngineDoesWhatVLLMDoes sends the same requests, as token ids, to a real vLLM and to the mock engine. The
// mock engine answers with the ids that vLLM generated. Blocks are compared by content, not by hash.
func TestTheMockEngineDoesWhatVLLMDoes(t *testing.T) {
	e := begin(t, "lab", launch{kind: "vllm", env: []string{fmt.Sprint("MAXLEN=", labModelLen), fmt.Sprint("MAXSEQS=", labSeqs)},
		args: []string{"--num-gpu-blocks-override", fmt.Sprint(labBlocks), "--max-num-batched-tokens", fmt.Sprint(labBatch)}})
	e.await(t)
	l := newLab(t, e.url, fmt.Sprintf("tcp://127.0.0.1:%d", e.pub), fmt.Sprintf("tcp://127.0.0.1:%d", e.rep))
	t.Run("one after another", l.sequential)
	t.Run("eight at a time", l.waves)
	t.Run("eight at a time, as they come", l.crowd)
}

// lab has the two engines that are compared.
type lab struct {
	real, mock *subject
	server     *mockengine.Server
	random     *rand.Rand
}

func newLab(t *testing.T, url, events, replay string) *lab {
	t.Helper()
	cfg := mockengine.DefaultConfig()
	cfg.Model, cfg.BlockSize, cfg.Blocks = "tiny", labBlock, labBlocks
	cfg.MaxModelLen, cfg.MaxBatchTokens, cfg.MaxSequences = labModelLen, labBatch, labSeqs
	server, err := mockengine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() {
		if err := server.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	<-server.Ready()
	source := server.Sources()[0]
	known := &contents{ids: map[string]int{}}
	follow := func(name, url string, src fleet.EventSource) *subject {
		s := &subject{name: name, url: url, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}, diary: newLabDiary(known)}
		t.Cleanup(s.client.CloseIdleConnections)
		running.Go(func() {
			if err := kvfeed.NewSubscriber(src, kvfeed.StreamConfig{}, s.diary).Run(ctx); err != nil {
				t.Error(err)
			}
		})
		testenv.WaitFor(t, 20*time.Second, "the events of "+name, func() error {
			if !s.diary.up() {
				return fmt.Errorf("not connected")
			}
			return nil
		})
		return s
	}
	return &lab{
		real:   follow("vLLM", url, fleet.EventSource{Endpoint: events, Replay: replay}),
		mock:   follow("mock", server.URL(), fleet.EventSource{Endpoint: source.Endpoint, Replay: source.Replay}),
		server: server, random: rand.New(rand.NewPCG(7, 11)),
	}
}

// question returns a prompt of one of twelve families. Prompts of a family have the same head. Each prompt has a tail
// of its own, of at least one block.
func (l *lab) question() question {
	family := l.random.IntN(12)
	head := labBlock * (1 + family%7)
	if family%4 == 3 {
		head -= 11 // let the head end inside a block
	}
	tail := labBlock + 1 + l.random.IntN(6*labBlock)
	if l.random.IntN(5) == 0 {
		tail = (head/labBlock+2)*labBlock - head // let the prompt end at a block's end
	}
	q := question{answer: 1 + l.random.IntN(70)}
	for i := range head {
		q.prompt = append(q.prompt, block.Token(100+(family*131+i*7)%3000))
	}
	for range tail {
		q.prompt = append(q.prompt, block.Token(100+l.random.IntN(3000)))
	}
	return q
}

// sequential sends one question after another. Some questions repeat a prompt, and some continue with the answer to a
// prompt.
func (l *lab) sequential(t *testing.T) {
	const requests = 150
	var asked []question
	wrong, cached, tokens := 0, 0, 0
	for i := range requests {
		q := l.question()
		if n := len(asked); n > 0 && i%4 == 3 {
			q = asked[max(0, n-1-l.random.IntN(6))]
		}
		if len(q.prompt)+q.answer > labModelLen {
			continue
		}
		real, err := l.real.ask(q, nil)
		if err != nil {
			t.Fatal(err)
		}
		mock, err := l.mock.ask(q, real.ids)
		if err != nil {
			t.Fatal(err)
		}
		if real.cached != mock.cached || !slices.Equal(real.ids, mock.ids) {
			wrong++
			t.Errorf("request %d, %d tokens: vLLM had %d cached, the mock engine %d; equal answers: %v", i, len(q.prompt), real.cached, mock.cached, slices.Equal(real.ids, mock.ids))
		}
		cached, tokens = cached+real.cached, tokens+len(q.prompt)
		asked = append(asked, q)
		if i%3 == 0 { // a later request may send this next turn of the conversation
			next := question{prompt: slices.Concat(q.prompt, real.ids, l.question().prompt[:40]), answer: 20}
			asked = append(asked, next)
		}
	}
	l.compare(t, true)
	r := l.real.diary.look()
	t.Logf("%d requests, %d with other cached tokens; %d of %d prompt tokens cached; %d blocks stored, %d evicted, %d live",
		requests, wrong, cached, tokens, r.stored, len(r.evicted), len(r.live))
	if len(r.evicted) < 200 || cached < tokens/10 {
		t.Errorf("the workload shows too little: %d evictions, %d of %d tokens cached", len(r.evicted), cached, tokens)
	}
}

// waves sends eight questions at the same time. All of them begin in the same step: until an engine has all questions,
// vLLM is paused, and the mock engine is stalled. The questions do not fit in the pool together, so some questions wait
// and some are preempted.
func (l *lab) waves(t *testing.T) {
	l.reset(t)
	for wave := range 12 {
		questions := make([]question, 8)
		for i := range questions {
			for len(questions[i].prompt) == 0 || len(questions[i].prompt) > 400 {
				questions[i] = l.question()
			}
			questions[i].answer = 30 + l.random.IntN(200)
		}
		before := len(l.real.diary.look().order)
		// Without clear_cache=false a pause would empty the cache.
		l.real.post(t, "/pause?mode=keep&clear_cache=false")
		answers := l.all(t, l.real, questions, func(int) []block.Token { return nil }, func() {
			// A paused vLLM does not report its queue, so wait for a time. If a question comes too late, the engines
			// may differ, and the test fails.
			time.Sleep(300 * time.Millisecond)
			l.real.post(t, "/resume")
		})
		l.settle(t)
		order := l.order(t, questions, l.real.diary.look().order[before:])
		if err := l.server.SetFaults(mockengine.Faults{Stalled: true}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		got := make([]generated, len(questions))
		for n, i := range order {
			wg.Go(func() {
				var err error
				if got[i], err = l.mock.ask(questions[i], answers[i].ids); err != nil {
					t.Error(err)
				}
			})
			testenv.WaitFor(t, 10*time.Second, "the mock engine to have the request", func() error {
				if s := l.server.Stats().Ranks[0]; s.Waiting+s.Running != n+1 {
					return fmt.Errorf("it has %d of %d", s.Waiting+s.Running, n+1)
				}
				return nil
			})
		}
		if err := l.server.SetFaults(mockengine.Faults{}); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		l.settle(t)
		for i := range questions {
			if got[i].cached != answers[i].cached {
				t.Errorf("wave %d request %d: vLLM had %d cached, the mock engine %d", wave, i, answers[i].cached, got[i].cached)
			}
		}
		if !l.compare(t, true) {
			t.Fatalf("wave %d: the engines differ", wave)
		}
	}
	r, preempted := l.real.diary.look(), l.server.Stats().Ranks[0].Preemptions
	t.Logf("12 waves of 8: %d blocks stored, %d evicted, %d live; the mock engine preempted %d times", r.stored, len(r.evicted), len(r.live), preempted)
	if preempted == 0 {
		t.Error("the workload shows too little: nothing was preempted")
	}
}

// order returns the questions in the order in which the engine began them. It finds the last full block of each prompt,
// which no other prompt has. The order of these blocks in stored is the order of the questions.
func (l *lab) order(t *testing.T, questions []question, stored []int) []int {
	t.Helper()
	at := make([]int, len(questions))
	order := make([]int, len(questions))
	for i, q := range questions {
		id, shared := 0, 0
		for n := labBlock; n <= len(q.prompt); n += labBlock {
			id = l.real.diary.known.of(id, q.prompt[n-labBlock:n])
			if shared = slices.Index(stored, id); shared >= 0 && n > len(q.prompt)-labBlock {
				break
			}
		}
		if at[i], order[i] = shared, i; shared < 0 {
			t.Fatalf("request %d stored no block of its own", i)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return at[a] - at[b] })
	return order
}

// crowd sends eight questions at the same time, so that their order is random. The questions fit in the pool together.
func (l *lab) crowd(t *testing.T) {
	l.reset(t)
	questions := make([]question, 8)
	for i := range questions {
		q := question{answer: 5 + 4*i}
		for n := range labBlock * 2 {
			q.prompt = append(q.prompt, block.Token(500+(i/2)*77+n))
		}
		for range 20 + 9*i {
			q.prompt = append(q.prompt, block.Token(100+l.random.IntN(3000)))
		}
		questions[i] = q
	}
	answers := l.all(t, l.real, questions, func(int) []block.Token { return nil }, func() {})
	l.all(t, l.mock, questions, func(i int) []block.Token { return answers[i].ids }, func() {})
	l.settle(t)
	l.compare(t, false)
	if r := l.real.diary.look(); len(r.evicted) > 0 || len(r.live) < 20 {
		t.Errorf("the workload shows too little, or too much: %d evicted, %d live", len(r.evicted), len(r.live))
	}
}

// all sends all questions at the same time, then calls begun, and returns the answers.
func (l *lab) all(t *testing.T, s *subject, questions []question, script func(int) []block.Token, begun func()) []generated {
	t.Helper()
	answers := make([]generated, len(questions))
	var wg sync.WaitGroup
	for i := range questions {
		wg.Go(func() {
			var err error
			if answers[i], err = s.ask(questions[i], script(i)); err != nil {
				t.Error(err)
			}
		})
	}
	begun()
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return answers
}

// reset empties both caches. The engines announce a reset with their next step that has events, so reset also sends a
// prompt that fills a block.
func (l *lab) reset(t *testing.T) {
	t.Helper()
	for _, s := range []*subject{l.real, l.mock} {
		s.post(t, "/reset_prefix_cache")
		if _, err := s.ask(question{prompt: []block.Token{1, 2, 3}, answer: 1}, []block.Token{4}); err != nil {
			t.Fatal(err)
		}
	}
	q := question{prompt: slices.Repeat([]block.Token{9}, labBlock+1), answer: 1}
	for _, s := range []*subject{l.real, l.mock} {
		if _, err := s.ask(q, []block.Token{4}); err != nil {
			t.Fatal(err)
		}
	}
	l.settle(t)
	for _, s := range []*subject{l.real, l.mock} {
		s.diary.begin()
	}
}

// settle waits until no event message has arrived for 250 ms.
func (l *lab) settle(t *testing.T) {
	t.Helper()
	last, since := -1, time.Now()
	testenv.WaitFor(t, 20*time.Second, "the events to arrive", func() error {
		now := l.real.diary.look().messages + l.mock.diary.look().messages
		if now != last {
			last, since = now, time.Now()
		}
		if quiet := time.Since(since); quiet < 250*time.Millisecond {
			return fmt.Errorf("the last came %v ago", quiet)
		}
		return nil
	})
}

// compare reports whether both engines have the same blocks. If ordered is true, both must also have evicted the same
// blocks in the same order.
func (l *lab) compare(t *testing.T, ordered bool) bool {
	t.Helper()
	l.settle(t)
	real, mock := l.real.diary.look(), l.mock.diary.look()
	for _, s := range []sight{real, mock} {
		if s.problem != "" {
			t.Fatal(s.problem)
		}
	}
	ok := true
	if diff := cmp.Diff(real.live, mock.live); diff != "" {
		t.Errorf("copies of each live block (-vLLM +mock):\n%s", diff)
		ok = false
	}
	if ordered && !slices.Equal(real.evicted, mock.evicted) {
		n := 0
		for n < min(len(real.evicted), len(mock.evicted)) && real.evicted[n] == mock.evicted[n] {
			n++
		}
		t.Errorf("evictions: vLLM %d, mock %d, equal as far as %d: then %v and %v", len(real.evicted), len(mock.evicted), n,
			real.evicted[n:min(n+8, len(real.evicted))], mock.evicted[n:min(n+8, len(mock.evicted))])
		ok = false
	}
	return ok
}
