package main

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"
)

// planner makes the requests of a set.
type planner interface {
	plan(w writer, clients int) plan
}

// event is something that happens in the middle of a run.
type event string

const (
	nothing       event = ""
	routerRestart event = "router restarts" // restart the router after half of the requests
	engineRestart event = "engine restarts" // stop an engine after two fifths of the requests, and start it again after half
)

// set is a kind of requests with a load.
type set struct {
	name     string
	about    string
	note     string // remark for a reader of the results; may be ""
	clients  int
	work     planner
	replicas int   // number of router processes behind a balancer; 0: one process without a balancer
	event    event // what happens in the middle of the run
	ranks    bool  // use one engine with two data-parallel ranks instead of two engines
	exact    bool  // on this set, routing by events gives other results than routing by estimates
	seconds  int   // estimated time of one run at scale 1 on two cores, preparation included
}

// The prompts of conversations have about 6,060 tokens on average. With an unlimited cache, 88 % of the prompt tokens
// would be hits.
var conversations = chats{talks: 40, turns: 5, systems: 4, system: 4000, user: 655, output: 32}

// drawn is the version of the rules for drawing plans and running engines. From version 2 on, answers have different
// lengths. From version 3 on, each engine has its own cores.
const drawn = 3

// fingerprint identifies the version of a set, so that results of different versions are not mixed.
func (s set) fingerprint() string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%d %+v %d %d %s %v", drawn, s.work, s.clients, s.replicas, s.event, s.ranks)
	return fmt.Sprintf("%08x", h.Sum32())
}

// of returns c with another number of conversations.
func (c chats) of(talks int) chats {
	c.talks = talks
	return c
}

// sets are in the order in which they are played.
var sets = []set{
	{name: "chats", about: "40 conversations of 5 turns under 4 system prompts of 4,000 tokens, 6 clients", clients: 6, work: conversations, seconds: 28},
	{name: "chats-light", about: "24 conversations of 5 turns under 4 system prompts of 4,000 tokens, 2 clients", clients: 2, work: conversations.of(24), seconds: 30},
	{name: "chats-heavy", about: "40 conversations of 5 turns under 4 system prompts of 4,000 tokens, 16 clients", clients: 16, work: conversations, seconds: 27},
	{name: "agents-light", about: "12 agents of 6 steps with 3 system prompts of 2,500 tokens; a tool takes 0.3 s; 2 clients", clients: 2,
		note: "A router that copies no system prompt to the other engine sends 33 % of the requests (one of the three system prompts) to " +
			"one engine. A copy costs 0.8 % of all prompt tokens. So if the best other router makes no copy, Warmpath cannot meet the goals " +
			"for hits and for shares at the same time.",
		work: agents{talks: 12, steps: 6, kinds: 3, system: 2500, result: 500, output: 32, pause: 300 * time.Millisecond}, seconds: 28},
	{name: "agents-heavy", about: "48 agents of 6 steps with 3 system prompts of 2,500 tokens; a tool takes 0.3 s; 16 clients", clients: 16,
		work: agents{talks: 48, steps: 6, kinds: 3, system: 2500, result: 500, output: 32, pause: 300 * time.Millisecond}, seconds: 27},
	{name: "prefix-light", about: "150 short questions after one prefix of 4,100 tokens, 2 clients", clients: 2,
		note: "A router that does not copy the prefix to the other engine sends all requests to one engine. A copy costs 0.7 % of all " +
			"prompt tokens. So if the best other router makes no copy, Warmpath cannot meet the goals for hits and for shares at the same time.",
		work: prefixes{requests: 150, count: 1, prefix: 4100, question: 45, output: 16}, seconds: 18},
	{name: "prefix-heavy", about: "400 short questions after one prefix of 4,100 tokens, 16 clients", clients: 16,
		work: prefixes{requests: 400, count: 1, prefix: 4100, question: 45, output: 16}, seconds: 18},
	{name: "two-routers", about: "The requests of chats through two routers behind a balancer (nginx, round robin)", clients: 6, work: conversations, replicas: 2, exact: true, seconds: 32},
	{name: "router-restart", about: "The requests of chats; the router is restarted when half of them are done", clients: 6, work: conversations, event: routerRestart, exact: true, seconds: 33,
		note: "The router's processor time is that of its second process alone, the one after the restart."},
	{name: "engine-restart", about: "The requests of chats; one engine is restarted when two fifths of them are done", clients: 6, work: conversations, event: engineRestart, exact: true, seconds: 110,
		note: "An engine may take up to 30 s to stop. Requests that wait there meanwhile increase the mean and the whole time, so compare " +
			"the median and p90. The engines' processor time includes the start of the new engine."},
	{name: "full-caches", about: "240 questions after 60 prefixes of 3,000 tokens, more than both caches hold together; 6 clients", clients: 6,
		work: prefixes{requests: 240, count: 60, prefix: 3000, question: 60, output: 32, skew: 1.1}, exact: true, seconds: 27},
	{name: "ranks", about: "The requests of chats on one engine with two data-parallel ranks", clients: 6, work: conversations, ranks: true, exact: true, seconds: 33},
}

// setNamed returns the set with the given name.
func setNamed(name string) (set, error) {
	i := slices.IndexFunc(sets, func(s set) bool { return s.name == name })
	if i < 0 {
		return set{}, fmt.Errorf("no set is called %q; `engines list` shows them", name)
	}
	return sets[i], nil
}

// scaled returns p with f times as many requests. The lengths of prompts do not change.
func scaled(p planner, f float64) planner {
	n := func(v int) int { return max(2, int(float64(v)*f+0.5)) }
	switch p := p.(type) {
	case chats:
		p.talks = n(p.talks)
		return p
	case agents:
		p.talks = n(p.talks)
		return p
	case prefixes:
		p.requests = n(p.requests)
		return p
	}
	return p
}
