package warmpath

// OthersTell counts n more requests of other peers.
func (r *Router) OthersTell(n int64) { r.told.Add(n) }

// Memory returns the map that has the requests of p, and the number of requests for which it has memory.
func (p *Peer) Memory() (requests any, most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests, p.most
}
