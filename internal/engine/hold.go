package engine

// Hold lets r keep the cached blocks of the longest beginning of hashes that the cache has, until Release. Another
// engine can then read these blocks. r must be new or recycled. Hold returns the number of blocks.
func (e *Engine) Hold(r *Request, hashes []Hash) (blocks int) {
	if r.state != idle || r.tokens != nil {
		panic("bug: blocks held for a request that an engine has")
	}
	for _, h := range hashes {
		id := e.pool.lookup(h)
		if id == nullBlock {
			break
		}
		e.pool.touch(id)
		r.blocks = append(r.blocks, id)
	}
	r.state = pinned
	return len(r.blocks)
}
