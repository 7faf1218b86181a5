package policy

import (
	"slices"
	"sync"

	"github.com/warmpath/warmpath/block"
)

// lengths remembers how long the last answers were: of each model, and of each class of requests (Query.Class).
// Requests of one class have prompts with the same beginning, such as the system prompt of one application, and their
// answers are more alike than all answers of a model. It is safe for concurrent use.
type lengths struct {
	models  [modelSlots]lengthSlot
	classes [classSlots]lengthSlot
}

const (
	// modelSlots is enough that the few models of one router hardly share a slot. If two models share a slot, predictions
	// for both are a little wrong.
	modelSlots = 32
	// classSlots is the number of classes that are remembered. It takes 128 KiB, and a router rarely serves more
	// applications with many requests.
	classSlots = 256
	// lengthsKept is how many lengths a slot remembers: enough for quantiles of the longest tenth, few enough to follow a
	// change of use within minutes.
	lengthsKept = 64
	// leastLengths is how many lengths of a class are needed before they count. Until then the lengths of the model count.
	leastLengths = 4
	// mostVotes bounds lengthSlot.votes. A class without further requests loses its slot after so many requests of other
	// classes.
	mostVotes = 64
)

type lengthSlot struct {
	mu     sync.Mutex
	ended  [lengthsKept]int32 // the lengths in the order in which the answers ended; the oldest one is at index next
	sorted [lengthsKept]int32 // the same lengths, ascending
	n      int                // how many lengths there are
	next   int

	// Used only for classes: owner is the class that has the slot. Each of its answers adds a vote, and each answer of
	// another class of the same slot takes one away. At 0 the other class takes over the slot [Boyer and Moore, MJRTY: A
	// Fast Majority Vote Algorithm, 1991].
	owner uint64
	votes int
}

func (l *lengths) model(name string) (slot *lengthSlot, hash uint64) {
	hash = block.FNVText(block.FNVBasis, name)
	return &l.models[block.Mix64(hash)%modelSlots], hash
}

// class returns the slot of a class of a model, and the owner that the slot has if it is the class's. modelHash comes
// from model.
func (l *lengths) class(modelHash, class uint64) (slot *lengthSlot, owner uint64) {
	owner = block.Mix64(modelHash ^ class)
	return &l.classes[owner%classSlots], owner
}

// learn notes the length of an answer in tokens. class is the class of its request; 0 is none.
func (l *lengths) learn(model string, class uint64, tokens int) {
	length := int32(min(tokens, 1<<30))
	slot, hash := l.model(model)
	slot.mu.Lock()
	slot.add(length)
	slot.mu.Unlock()
	if class == 0 {
		return
	}
	slot, owner := l.class(hash, class)
	slot.mu.Lock()
	defer slot.mu.Unlock()
	if slot.owner != owner {
		if slot.votes--; slot.votes > 0 {
			return
		}
		slot.owner, slot.votes, slot.n, slot.next = owner, 0, 0, 0
	}
	slot.votes = min(slot.votes+1, mostVotes)
	slot.add(length)
}

// add adds a length, and forgets the oldest one if there are lengthsKept already. s.mu is held.
func (s *lengthSlot) add(length int32) {
	if s.n == lengthsKept {
		oldest, _ := slices.BinarySearch(s.sorted[:], s.ended[s.next])
		copy(s.sorted[oldest:], s.sorted[oldest+1:])
		s.n--
	}
	at, _ := slices.BinarySearch(s.sorted[:s.n], length)
	copy(s.sorted[at+1:], s.sorted[at:s.n])
	s.sorted[at] = length
	s.n++
	s.ended[s.next] = length
	s.next = (s.next + 1) % lengthsKept
}

// append appends the last lengths of a class, ascending. If there are too few, it appends those of the model.
func (l *lengths) append(dst []int32, model string, class uint64) []int32 {
	ofModel, hash := l.model(model)
	if class != 0 {
		slot, owner := l.class(hash, class)
		slot.mu.Lock()
		if slot.owner == owner && slot.n >= leastLengths {
			defer slot.mu.Unlock()
			return append(dst, slot.sorted[:slot.n]...)
		}
		slot.mu.Unlock()
	}
	ofModel.mu.Lock()
	defer ofModel.mu.Unlock()
	return append(dst, ofModel.sorted[:ofModel.n]...)
}

// lengthQuantiles is the number of quantiles that stand for the unknown length of an answer. Eight gain nothing
// (docs/design/0039).
const lengthQuantiles = 4

// quantiles returns equally likely lengths of an answer that has output tokens so far: quantiles of the greater ones
// among the last lengths. most bounds them; 0 is no bound. sorted has the last lengths, ascending. If none of them is
// greater, the answer is expected to become a quarter longer, and at least as long as firstAnswer.
func quantiles(sorted []int32, output, most int) (out [lengthQuantiles]float64) {
	at, _ := slices.BinarySearch(sorted, int32(min(output, 1<<30))+1)
	longer := sorted[at:]
	for k := range out {
		if len(longer) > 0 {
			out[k] = float64(longer[(2*k+1)*len(longer)/(2*lengthQuantiles)])
		} else {
			out[k] = max(1.25*float64(output), firstAnswer)
		}
		if most > 0 {
			out[k] = min(out[k], float64(max(most, output+1)))
		}
	}
	return out
}
