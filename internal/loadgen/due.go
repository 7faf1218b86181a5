package loadgen

import (
	"cmp"
	"time"
)

// dueHeap is a heap of requests that follow other requests, with the request that is due first at the top.
type dueHeap []dueRequest

type dueRequest struct {
	at      time.Duration
	request int
}

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), cmp.Compare(h[i].request, h[j].request)) < 0
}
func (h dueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)   { *h = append(*h, x.(dueRequest)) }
func (h *dueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
