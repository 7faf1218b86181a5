package indexer

import (
	"fmt"
	"strconv"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/zmtp"
)

// endpoints has a worker of each endpoint of events. Two workers with one endpoint are most likely a mistake: one
// engine with two URLs, whose events then count twice, or a wrong endpoint.
type endpoints struct {
	registered map[string]string // by socketOf the endpoint: a registered worker that has it
	listed     map[string]string // by socketOf the endpoint: a worker of this process's lists that has it
	generation uint64            // of the fleet's snapshot from which listed was made
}

// socketOf returns the same text for endpoints that are known to be the same socket: all names of this machine count as
// one. Other names of a machine, and their addresses, are different texts, because nothing here asks a name server.
func socketOf(endpoint string) string {
	if e, err := zmtp.ParseEndpoint(endpoint); err == nil && e.Path == "" && network.LoopbackHost(e.Host) {
		return "tcp://localhost:" + strconv.Itoa(e.Port)
	}
	return endpoint
}

// add notes the event sources of a registered worker, and returns a warning if another worker has one of them; "": none
// has. The same worker in another group is no other worker.
func (p *endpoints) add(name string, sources []fleet.EventSource) (warning string) {
	for _, s := range sources {
		socket := socketOf(s.Endpoint)
		if other := p.registered[socket]; other != "" && bare(other) != bare(name) {
			warning = sharedBy(other, s.Endpoint)
			continue
		}
		if other := p.listed[socket]; other != "" && other != bare(name) {
			warning = sharedBy(other, s.Endpoint)
		}
		p.registered[socket] = name
	}
	return warning
}

func sharedBy(other, endpoint string) string {
	return fmt.Sprintf("the worker %s has the endpoint %s, too: if they are one engine, give it the same URL everywhere, so that its events count once; "+
		"if they are two, correct one of the endpoints", api.Quoted(bare(other)), api.Quoted(endpoint))
}

// keep forgets the endpoints that a registered worker had before and has no longer.
func (p *endpoints) keep(name string, before, after *fleet.Facts) {
	kept := make(map[string]bool, len(after.Events))
	for _, s := range after.Events {
		kept[socketOf(s.Endpoint)] = true
	}
	for _, s := range before.Events {
		if socket := socketOf(s.Endpoint); !kept[socket] && p.registered[socket] == name {
			delete(p.registered, socket)
		}
	}
}

// compareListed looks at the endpoints of the workers of this process's lists, if the fleet has changed, and logs each
// new one that a registered worker has, too: the worker may have been registered before its namesake was found.
func (g *registry) compareListed() {
	snap := g.fleet.Snapshot()
	g.mu.Lock()
	seen := g.endpoints.generation >= snap.Generation()
	g.mu.Unlock()
	if seen {
		return
	}
	listed, next := g.listedAll(), map[string]string{}
	for _, w := range snap.Workers() {
		if listed[w.URL] == "" {
			continue
		}
		for _, s := range w.Facts.Events {
			next[socketOf(s.Endpoint)] = w.URL
		}
	}
	for worker, warning := range g.takeListed(next, snap.Generation()) {
		g.warnShared(worker, warning)
	}
}

// takeListed stores the endpoints of the listed workers, and returns the warnings about new ones, by worker.
func (g *registry) takeListed(next map[string]string, generation uint64) map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	p, warnings := &g.endpoints, map[string]string{}
	if p.generation >= generation {
		return nil
	}
	for socket, worker := range next {
		other := p.registered[socket]
		if _, known := p.listed[socket]; !known && other != "" && bare(other) != worker {
			warnings[worker] = sharedBy(other, socket)
		}
	}
	p.listed, p.generation = next, generation
	return warnings
}

func (g *registry) warnShared(worker, warning string) {
	g.log.Warn("two workers have the same endpoint of events", "worker", worker, "because", warning)
}
