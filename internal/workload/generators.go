package workload

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// sharedPrefix makes several groups of prompts. The prompts of a group share a system prompt, and each prompt has its
// own question. With the parameter stages, the prompts are sent repeatedly in one shuffled order. Without stages, each
// prompt is sent once, at the parameter rate.
func sharedPrefix(g *generation) {
	groups, prompts := g.count("groups"), g.count("prompts")
	if groups < 1 || prompts < 1 || groups > maxRequests/prompts {
		g.problems = append(g.problems, fmt.Errorf("%d groups of %d prompts: want 1..%d prompts in all", groups, prompts, maxRequests))
		return
	}
	all := make([][2]Segment, 0, groups*prompts)
	for range groups {
		system := g.content(g.count("system"))
		for range prompts {
			all = append(all, [2]Segment{system, g.content(g.count("question"))})
		}
	}
	g.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	next := 0
	send := func(at float64) {
		p := all[next%len(all)]
		next++
		g.add(g.prompt(g.count("output"), p[0], p[1]), at)
	}
	if g.values["stages"] == "" {
		at := 0.0
		for range all {
			if g.full() {
				return
			}
			send(at)
			at += g.exponential(g.number("rate"))
		}
		return
	}
	g.stages(send)
}

// stages adds the stages of the parameter stages, which has the form RATExSECONDS/RATExSECONDS/… Each stage is a
// Poisson process with rate × seconds requests. stages calls send with the arrival time of each request.
func (g *generation) stages(send func(at float64)) {
	start := 0.0
	for _, part := range strings.Split(g.values["stages"], "/") {
		rateText, secondsText, _ := strings.Cut(part, "x")
		rate, err1 := strconv.ParseFloat(rateText, 64)
		length, err2 := strconv.ParseFloat(secondsText, 64)
		if err1 != nil || err2 != nil || !(rate > 0) || !(length > 0) || rate*length > maxRequests {
			g.problems = append(g.problems, fmt.Errorf("stages: %q: want RATExSECONDS, as in 10x20", part))
			return
		}
		g.w.Stages = append(g.w.Stages, Stage{
			Name:  rateText + " qps",
			Start: time.Duration(start * float64(time.Second)),
			Rate:  rate,
			First: len(g.w.Requests),
			Drain: g.number("drain") != 0 && len(g.w.Stages) > 0,
		})
		at := start
		for range int(math.Round(rate * length)) {
			at += g.exponential(rate)
			send(at)
			if g.full() {
				return
			}
		}
		start = max(start+length, at)
	}
}

// independent makes prompts that share only a system prompt.
func independent(g *generation) {
	system := g.content(g.count("system"))
	at := 0.0
	for range g.count("requests") {
		if g.full() {
			return
		}
		g.add(g.prompt(g.lognormal("output"), system, g.content(g.count("question"))), at)
		at += g.exponential(g.number("rate"))
	}
}

// answerTime estimates the duration of an answer in seconds. In closed loops the estimate sets the arrivals, which only
// give the order of the requests: a player uses think times there. multiRoundQA also computes its think time from the
// estimate.
func answerTime(output int) float64 { return 0.2 + 0.02*float64(output) }

// talk adds a session that begins at time at. Each turn sends the whole conversation so far. With the parameter window
// the session ends before a turn whose prompt and answer together have more tokens than window. The first turn is
// always sent.
func (g *generation) talk(session int, at float64, turns int, think func() float64, opening ...Segment) {
	said := opening
	after := -1
	window := g.count("window")
	for range turns {
		if g.full() {
			return
		}
		said = append(said, g.content(g.count("question")))
		r := g.prompt(g.lognormal("output"), said...)
		if window > 0 && after >= 0 && r.Input+r.Output > window {
			return
		}
		answer := g.content(r.Output)
		r.Session, r.After, r.OutputSegment = session, after, answer.ID
		if after >= 0 {
			pause := think()
			at += pause
			r.Think = time.Duration(pause * float64(time.Second))
		}
		after = r.ID
		g.add(r, at)
		at += answerTime(r.Output)
		said = append(said, answer)
	}
}

// conversations makes sessions that begin as a Poisson process. All sessions share a system prompt, and each session
// has its own context.
func conversations(g *generation) {
	system := g.content(g.count("system"))
	at := 0.0
	for s := range g.count("sessions") {
		if g.full() {
			return
		}
		g.talk(s, at, max(g.lognormal("turns"), 1), g.pause, system, g.content(g.lognormal("context")))
		at += g.exponential(g.number("rate"))
	}
}

// pause draws a think time in seconds from an exponential distribution with the parameter think as the mean.
func (g *generation) pause() float64 { return g.random.ExpFloat64() * g.number("think") }

// multiRoundQA makes the workload of production-stack's multi-round-qa.py. Each user asks a question about every
// users/qps seconds. A new user begins every rounds/qps seconds, so about as many users as the parameter users says are
// active at the same time. The script waits from one question to the next. This generator's pause is from the end of an
// answer to the next question, so it is shorter by the estimated duration of an answer.
func multiRoundQA(g *generation) {
	users, rounds, qps := g.number("users"), g.count("rounds"), g.number("qps")
	if users < 1 || rounds < 1 || qps <= 0 {
		g.problems = append(g.problems, fmt.Errorf("want users and rounds of at least 1 and a positive qps"))
		return
	}
	gap := users / qps
	pause := max(gap-answerTime(g.count("output")), 0)
	system := g.content(g.count("system"))
	between := gap * float64(rounds) / users
	for s := range g.count("sessions") {
		if g.full() {
			return
		}
		g.talk(s, float64(s)*between, rounds, func() float64 { return pause }, system, g.content(g.count("history")))
	}
}

// maxDraws bounds how often rag draws documents for one prompt. A prompt has at most 1,000 passages. With a large zipf
// nearly all draws give the same document, so a prompt of different documents would take forever.
const maxDraws = 20_000

// rag makes prompts of a system prompt, retrieved passages and a question. The passages of each prompt are drawn at
// random, so most pairs of prompts have only the system prompt as a common prefix.
func rag(g *generation) {
	n, k := g.count("documents"), g.count("passages")
	if n < 1 || k > min(n, 1000) {
		g.problems = append(g.problems, fmt.Errorf("%d passages of %d documents: want at most 1,000, and as many documents", k, n))
		return
	}
	system := g.content(g.count("system"))
	documents := make([]Segment, n)
	upTo := make([]float64, n) // cumulative popularity
	sum := 0.0
	for i := range documents {
		documents[i] = g.content(g.count("passage"))
		sum += math.Pow(float64(i+1), -g.number("zipf"))
		upTo[i] = sum
	}
	at := 0.0
	for range g.count("requests") {
		if g.full() {
			return
		}
		prompt := []Segment{system}
		for draws := 0; len(prompt) <= k; draws++ {
			i, _ := slices.BinarySearch(upTo, g.random.Float64()*sum)
			d := documents[min(i, n-1)]
			// Draw again if the prompt has the document already. With k ≤ n/2 and the default zipf a few draws find a
			// new document. With a larger k, or after maxDraws draws, the prompt may repeat a document.
			if !slices.Contains(prompt, d) || k > n/2 || draws > maxDraws {
				prompt = append(prompt, d)
			}
		}
		g.add(g.prompt(g.lognormal("output"), append(prompt, g.content(g.count("question")))...), at)
		at += g.exponential(g.number("rate"))
	}
}

// rollouts makes the requests of reinforcement learning in steps. A step has groups of requests with the same prompt,
// and all requests of a step are sent at the same time. The next step begins when all requests of the step have ended.
func rollouts(g *generation) {
	at := 0.0
	for step := range g.count("steps") {
		g.w.Stages = append(g.w.Stages, Stage{
			Name: fmt.Sprintf("step %d", step+1), Start: time.Duration(at * float64(time.Second)), First: len(g.w.Requests), Drain: step > 0,
		})
		for range g.count("groups") {
			prompt := g.content(g.count("question"))
			for range g.count("samples") {
				if g.full() {
					return
				}
				g.add(g.prompt(g.lognormal("output"), prompt), at)
			}
		}
		// the difference of 1 ms only keeps the steps in order: the next step waits for the end of all earlier requests
		// (Drain)
		at += 0.001
	}
}

// bursts makes background traffic of independent prompts. At intervals it adds a burst of requests that share a new
// prefix.
func bursts(g *generation) {
	every, count := g.number("every"), g.count("bursts")
	for b := range count {
		prefix := g.content(g.count("system"))
		for range g.count("size") {
			if g.full() {
				return
			}
			at := (float64(b)+0.5)*every + g.random.Float64()*g.number("spread")
			g.add(g.prompt(g.lognormal("output"), prefix, g.content(g.count("question"))), at)
		}
	}
	rate := g.number("background")
	if rate <= 0 {
		return
	}
	for at := g.exponential(rate); at < every*float64(count); at += g.exponential(rate) {
		if g.full() {
			return
		}
		g.add(g.prompt(g.lognormal("output"), g.content(g.count("system")+g.count("question"))), at)
	}
}
