// Package queue orders requests that wait until a worker can take them. It has no clock, no goroutine and no lock. It
// does not know what a request contains, or when there is room; internal/gateway knows that.
//
// In every order, a waiting request has one number, a virtual time of arrival, which Push computes, and which only Use
// changes. A reason to serve the request earlier makes this time earlier, and a reason to serve it later makes it
// later. So all requests age alike, and no request can be overtaken without end.
//
//	q := queue.New(cfg)
//	shed, refused := q.Push(&item, now) // refused: the queue is full, or the wait would be too long; shed: requests that were removed to make room
//	item := q.Pop()                     // when there is room
//	q.Served(item, now)                 // or q.Return(item), if there was no room for this item
package queue
