package gateway

import (
	"container/heap"
	"container/list"
	"sync"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// An engine keeps the responses that it made, and no other engine knows them. So the router remembers which worker made
// which response. It remembers the last mostResponses for keptFor: both bound the memory, which is at most 36 MB. When
// there is no room, the tenant with the most responses loses its oldest one. So no tenant pushes out the few responses
// of another. Of several such tenants, the one whose oldest response is the oldest loses it.
const (
	mostResponses = 1 << 16
	keptFor       = 24 * time.Hour
)

// madeResponse says where a response is.
type madeResponse struct {
	worker      fleet.WorkerID
	incarnation uint64
	model       string // as the request named it
	tenant      string // only this tenant finds the response
	at          time.Time
}

// madeResponses remembers responses by their ids. It is safe for concurrent use.
type madeResponses struct {
	mu      sync.Mutex // guards the fields below
	byID    map[string]*keptResponse
	all     list.List // of *keptResponse, oldest first
	tenants map[string]*responsesOf
	longest longestFirst // the tenants
	added   uint64       // the number of responses that were ever added
}

type keptResponse struct {
	madeResponse
	id        string
	number    uint64        // the number of responses that were added before
	inAll, in *list.Element // its places in madeResponses.all and in its tenant's list
}

// responsesOf is a tenant's part of madeResponses. It has at least one response.
type responsesOf struct {
	list list.List // of *keptResponse, oldest first
	at   int       // its place in madeResponses.longest
}

// add remembers a response. vLLM lets a client choose the id (request_id), so another tenant's response with the same
// id stays that tenant's.
func (m *madeResponses) add(id string, made madeResponse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byID == nil {
		m.byID, m.tenants = map[string]*keptResponse{}, map[string]*responsesOf{}
	}
	for oldest := m.all.Front(); oldest != nil && made.at.Sub(oldest.Value.(*keptResponse).at) > keptFor; oldest = m.all.Front() {
		m.drop(oldest.Value.(*keptResponse))
	}
	if was := m.byID[id]; was != nil {
		if was.tenant != made.tenant {
			return
		}
		m.drop(was)
	}
	if len(m.byID) >= mostResponses {
		m.drop(m.longest[0].list.Front().Value.(*keptResponse))
	}
	k := &keptResponse{madeResponse: made, id: id, number: m.added}
	m.added++
	m.byID[id] = k
	k.inAll = m.all.PushBack(k)
	if of := m.tenants[made.tenant]; of != nil {
		k.in = of.list.PushBack(k)
		heap.Fix(&m.longest, of.at)
		return
	}
	of := &responsesOf{}
	m.tenants[made.tenant] = of
	k.in = of.list.PushBack(k)
	heap.Push(&m.longest, of)
}

// drop forgets a response. m.mu is held.
func (m *madeResponses) drop(k *keptResponse) {
	delete(m.byID, k.id)
	m.all.Remove(k.inAll)
	of := m.tenants[k.tenant]
	of.list.Remove(k.in)
	if of.list.Len() > 0 {
		heap.Fix(&m.longest, of.at)
		return
	}
	heap.Remove(&m.longest, of.at)
	delete(m.tenants, k.tenant)
}

// find returns where a tenant's response is.
func (m *madeResponses) find(id, tenant string, now time.Time) (made madeResponse, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.byID[id]
	if k == nil || k.tenant != tenant || now.Sub(k.at) > keptFor {
		return made, false
	}
	return k.madeResponse, true
}

func (m *madeResponses) remove(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.byID[id]; k != nil {
		m.drop(k)
	}
}

// longestFirst is a heap of tenants: the one with the most responses comes first, and of those with the same number the
// one with the oldest response. It is a heap.Interface.
type longestFirst []*responsesOf

func (l longestFirst) Len() int { return len(l) }
func (l longestFirst) Less(i, j int) bool {
	a, b := &l[i].list, &l[j].list
	if a.Len() != b.Len() {
		return a.Len() > b.Len()
	}
	return a.Front().Value.(*keptResponse).number < b.Front().Value.(*keptResponse).number
}
func (l longestFirst) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].at, l[j].at = i, j
}

func (l *longestFirst) Push(x any) {
	of := x.(*responsesOf)
	of.at = len(*l)
	*l = append(*l, of)
}

func (l *longestFirst) Pop() any {
	last := len(*l) - 1
	of := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	return of
}
