package kvindex

import "github.com/warmpath/warmpath/fleet"

// worker counts the holders of one worker. They have one fair share together.
type worker struct {
	key     workerKey
	holders int
	weight  float64 // the sum of its holders' weights, when shares were compared last
}

// workerKey identifies a worker. A holder without a worker is a worker by itself.
type workerKey struct {
	id     fleet.WorkerID
	holder fleet.Holder
	alone  bool
}

func (x *Index) workerKey(id fleet.Holder) workerKey {
	if x.config.Worker != nil {
		if w, ok := x.config.Worker(id); ok {
			return workerKey{id: w}
		}
	}
	return workerKey{holder: id, alone: true}
}

// employ adds a new holder to its worker.
func (x *Index) employ(h *holder) {
	key := x.workerKey(h.id)
	if x.workers == nil {
		x.workers = map[workerKey]*worker{}
	}
	w := x.workers[key]
	if w == nil {
		w = &worker{key: key}
		x.workers[key] = w
	}
	w.holders++
	h.worker = w
}

// dismiss removes a holder from its worker.
func (x *Index) dismiss(h *holder) {
	if h.worker.holders--; h.worker.holders == 0 {
		delete(x.workers, h.worker.key)
	}
}

// share returns a holder's fair share in bytes. All workers have equal shares, and a worker's share is divided among
// its holders. So a worker gains nothing by having many ranks.
func (x *Index) share(h *holder) float64 {
	return float64(x.config.Bytes) / float64(max(len(x.workers), 1)) / float64(h.worker.holders)
}

// compareShares finds the holders that exceed their fair shares. It charges the memory of claims, of strands and of
// exceptions to the holders, in proportion to their numbers of each. So the charges add up to the memory of all blocks
// and exceptions: a holder that makes most of the strands pays for most of their memory. If two holders have a block,
// the block counts in full for each of them. If a worker does not exceed its share, none of its holders does. Some of
// the budget cannot be used, so perhaps no worker exceeds its share: then the workers with about the highest charge
// count as exceeding it.
func (x *Index) compareShares() {
	b := &x.blocks
	var claims, owned, extra int64
	for _, h := range x.blocks.holders {
		if h != nil {
			claims, owned, extra = claims+h.claims, owned+h.owned, extra+h.extra
			h.worker.weight = 0
		}
	}
	each := func(bytes, n int64) float64 { return float64(bytes) / float64(max(n, 1)) }
	aStrand := each(b.strands.Bytes()+b.heads.Bytes(), owned)
	aClaim := each(b.bytes()-b.strands.Bytes()-b.heads.Bytes(), claims)
	anExtra := each(x.blocks.extraBytes, extra)
	most := 0.0
	for _, h := range x.blocks.holders {
		if h != nil {
			h.weight = aClaim*float64(h.claims) + aStrand*float64(h.owned) + anExtra*float64(h.extra)
			h.worker.weight += h.weight
			most = max(most, h.worker.weight)
		}
	}
	share := float64(x.config.Bytes) / float64(max(len(x.workers), 1))
	if most <= share {
		share = most * aboutMost
	}
	for _, h := range x.blocks.holders {
		if h != nil {
			own := share / float64(h.worker.holders)
			h.over = h.worker.weight > share && h.weight > own
			h.quota = 0
			if h.over {
				h.quota = int64((h.weight-own)/h.weight*float64(h.claims)) + h.claims/256 + 1
			}
		}
	}
	b.steps += 3 * uint64(len(x.blocks.holders))
}

// aboutMost is a fraction of the highest charge of a worker: above it, a charge is about the highest. With a larger
// fraction, a single worker would lose blocks for all. With a smaller fraction, workers with much less than a share
// would lose blocks.
const aboutMost = 0.98

// spares reports whether a set has a holder at or below its share. If so, the set's blocks stay while other blocks can
// be evicted.
func (x *Index) spares(set setID) bool {
	var one [1]uint64
	for _, w := range x.blocks.sets.members(set, &one) {
		if x.blocks.steps++; !x.blocks.holders[member(w).holder()].over {
			return true
		}
	}
	return false
}
