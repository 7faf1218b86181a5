package mockengine

// room is where a request of one engine and its other leg at another engine meet: the reader of blocks may come before
// the blocks are computed, or after. exchange.mu guards it.
type room struct {
	key     string
	users   int           // requests and readers in the room; the last one removes it
	reader  chan struct{} // closed when a reader has come
	leased  chan struct{} // closed when the blocks are computed
	over    chan struct{} // closed when the reader has the blocks, or one side has given up
	problem string        // why one side gave up; "": it did not
}

// enter joins the room with the key, and opens it if there is none.
func (x *exchange) enter(key string) *room {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.rooms[key]
	if r == nil {
		r = &room{key: key, reader: make(chan struct{}), leased: make(chan struct{}), over: make(chan struct{})}
		x.rooms[key] = r
		if x.leases[key] != nil {
			close(r.leased)
		}
	}
	r.users++
	return r
}

func (x *exchange) leave(r *room) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r.users--; r.users == 0 && x.rooms[r.key] == r {
		delete(x.rooms, r.key)
	}
}

// signal closes one of a room's channels, unless it is closed already.
func (x *exchange) signal(c chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	closeOnce(c)
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// finish ends the meeting in a room; problem says why it failed. Only the first call has an effect.
func (x *exchange) finish(r *room, problem string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-r.over:
	default:
		r.problem = problem
		close(r.over)
	}
}

// outcome returns the problem of a room that is over.
func (x *exchange) outcome(r *room) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return r.problem
}

// leaseOf returns a lease, or nil.
func (x *exchange) leaseOf(key string) *lease {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.leases[key]
}
