package warmpath

// OthersTell counts n more requests of other peers.
func (r *Router) OthersTell(n int64) { r.told.Add(n) }
