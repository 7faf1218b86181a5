// Package queue orders requests that wait until a worker can take them. It is a structure and nothing more: it has no
// clock, no goroutine and no lock; whoever waits, and whoever tells that there is room, is elsewhere
// (internal/gateway).
//
// Every order is one number, a virtual time of arrival, fixed when a request is pushed: what counts in a request's
// favour makes it as if it had come earlier. Waiting therefore ages all requests alike, and no request can be
// overtaken for ever.
//
//	q := queue.New(cfg)
//	shed, refused := q.Push(&item, now)                    // refused: full, or too late; shed: removed for it
//	item := q.Pop()                                        // when there is room
//	q.Served(item, now)                                    // or q.Return(item), when there was none for this one
package queue
