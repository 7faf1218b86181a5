package replica

import (
	"maps"
	"time"

	"github.com/warmpath/warmpath"
)

// maxAllUnderWay bounds the requests under way that are followed of all peers together. Beyond it a peer that follows
// more than underWayShare gets no room for a further request. So a peer that tells of too many takes nothing from the
// others: maxPeers peers have room for their shares, and all peers together have 2^19 + 256 * 2^11 = 2^20 requests at
// most. A request takes some 52 bytes in underWay: 55 MB. The map of a peer may have the memory of twice its requests
// (see forget): 110 MB at worst. With maxUnderWay alone it would be 256 * 2^16 * 52 bytes: 0.9 GB.
//
// Not lower: the bounds are those of the peers' load in the root package, so that each request that is followed can
// count. 2^19 requests are those of 2,000 engines with 256 each.
const maxAllUnderWay, underWayShare = 1 << 19, 1 << 11

// followed is a request under way at a peer.
type followed struct {
	number    uint64 // of the packet to all that told of it, or that was the last one before the answer that did
	answer    uint32 // the number of the last answer that had it
	prefilled bool
}

// room reports whether p may have a further request under way.
func (p *peer) room() bool {
	n := len(p.underWay)
	return n < underWayShare || n < maxUnderWay && *p.all < maxAllUnderWay
}

// follow follows a request. number is the number of the packet to all that told of it. isNew is true if the request was
// not heard of before; its load is then to be added. room is false if there are too many.
func (p *peer) follow(placement *warmpath.Placement, number uint64, now time.Time) (isNew, room bool) {
	id := placement.ID
	if _, ended := p.freed[id]; ended {
		return false, true
	}
	if f, known := p.underWay[id]; known {
		if placement.PrefillCompleted && !f.prefilled {
			p.prefilled(id, now)
		}
		return false, true
	}
	room = p.put(id, followed{number: number, prefilled: placement.PrefillCompleted}, now)
	return room, room
}

// unreadable follows a request whose record cannot be read: it counts as no load, and the digests agree.
func (p *peer) unreadable(id, number uint64, now time.Time) {
	_, known := p.underWay[id]
	_, ended := p.freed[id]
	if id == 0 || known || ended {
		return
	}
	p.put(id, followed{number: number}, now)
}

// put puts a request that is not known into underWay, if there is room. It reports whether there is.
func (p *peer) put(id uint64, f followed, now time.Time) bool {
	if !p.room() {
		if p.noRoom.IsZero() {
			p.noRoom = now
		}
		return false
	}
	p.underWay[id] = f
	*p.all++
	p.most = max(p.most, len(p.underWay))
	p.digest ^= digestOf(id, f.prefilled)
	return true
}

// inAnswer notes that the present answer has a request.
func (p *peer) inAnswer(id uint64) {
	if f, known := p.underWay[id]; known {
		f.answer = p.answers
		p.underWay[id] = f
	}
}

// forget removes a request from the books of this package.
func (p *peer) forget(id uint64) {
	f, known := p.underWay[id]
	if !known {
		return
	}
	delete(p.underWay, id)
	*p.all--
	p.refused.remove(id)
	p.digest ^= digestOf(id, f.prefilled)
	// A map never gives memory back. Without a new one, a peer keeps the memory of all requests that it ever had.
	if n := len(p.underWay); p.most > underWayShare && n < p.most/2 {
		smaller := make(map[uint64]followed, n)
		maps.Copy(smaller, p.underWay)
		p.underWay, p.most = smaller, n
	}
}

// forgetAll removes all requests from the count of all peers. p is not used any more.
func (p *peer) forgetAll() {
	*p.all -= len(p.underWay)
	p.underWay = nil
}
