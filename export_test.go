package warmpath

// HeldKeys returns the keys that the requests of p hold: as p counts them, as they are, and as the router counts those
// of all peers.
func (p *Peer) HeldKeys() (counted, held int, all int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.requests {
		held += t.held()
	}
	return p.keys, held, p.router.toldKeys.Load()
}
