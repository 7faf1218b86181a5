// Package queue orders requests that wait until a worker can take them. It has no clock, no goroutine and no lock, and
// refuses to know what waits and when there is room: that is internal/gateway's.
//
// Every order is one number, a virtual time of arrival, fixed when a request is pushed. What speaks for a request moves
// this time back, what speaks against it moves it forward. So waiting ages all requests alike, and no request can be
// overtaken for ever.
//
//	q := queue.New(cfg)
//	shed, refused := q.Push(&item, now) // refused: the queue is full or too long; shed: removed to make room
//	item := q.Pop()                     // when there is room
//	q.Served(item, now)                 // or q.Return(item), when there was no room for this one
package queue
