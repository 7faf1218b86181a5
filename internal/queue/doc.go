// Package queue orders requests that wait until a worker can take them. It has no clock, no goroutine and no lock. It
// does not know what a request is or when there is room: internal/gateway does.
//
// Every order is one number, a virtual time of arrival, fixed when a request is pushed. Reasons to serve a request
// earlier move this time back, reasons to serve it later move it forward. So waiting ages all requests alike, and no
// request can be overtaken for ever.
//
//	q := queue.New(cfg)
//	shed, refused := q.Push(&item, now) // refused: the queue is full or too long; shed: removed to make room
//	item := q.Pop()                     // when there is room
//	q.Served(item, now)                 // or q.Return(item), when there was no room for this one
package queue
