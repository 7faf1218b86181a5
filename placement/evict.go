package placement

import "slices"

// stretch is how many memberships are forgotten before others may look at the tree: some 50 µs.
const stretch = 256

// fit forgets until the budget holds. The tree is locked.
func (t *Tree) fit() {
	for t.used-int64(t.roots)*nodeBytes > t.budget { // roots stay
		most := 0
		for i := range t.holders {
			if weight(&t.holders[i]) > weight(&t.holders[most]) {
				most = i
			}
		}
		for range 16 { // looking for the largest costs more than forgetting its least recent
			if t.used-int64(t.roots)*nodeBytes <= t.budget || !t.forgetOldest(uint32(most)) {
				break
			}
		}
	}
}

// weight is what a holder takes, were it alone.
func weight(who *holder) int64 { return who.bytes + int64(who.links)*(nodeBytes+linkBytes) }

// forgetOldest drops the holder's least recent membership, and the node with its last. It reports false when there is
// none. The tree is locked.
func (t *Tree) forgetOldest(number uint32) bool {
	who := &t.holders[number]
	l := who.oldest
	if l == 0 {
		return false
	}
	id := t.links[l].node
	t.unlink(who, l)
	t.links[l] = link{}
	t.freeLinks = append(t.freeLinks, l)
	n := &t.nodes[id]
	at, has := t.find(id, number)
	if !has {
		panic("bug: a holder's list has a node that the holder is not in")
	}
	n.holds = slices.Delete(n.holds, at, at+1)
	who.bytes -= int64(len(n.text))
	who.links--
	t.used -= linkBytes
	if len(n.holds) == 0 {
		t.drop(id)
	}
	return true
}

// drop removes a node that nobody has. It has no children: theirs would have to be a subset of its holders.
func (t *Tree) drop(id uint32) {
	n := &t.nodes[id]
	if n.children != 0 {
		panic("bug: a node that no holder has has children")
	}
	delete(t.children, edge{n.parent, t.first(n.text)})
	t.nodes[n.parent].children--
	t.used -= nodeBytes + int64(len(n.text))
	*n = node{}
	t.freeNodes = append(t.freeNodes, id)
}

// Remove forgets all that the holder has.
func (t *Tree) Remove(holder uint32) {
	for t.removeSome(holder) {
	}
}

func (t *Tree) removeSome(holder uint32) (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(holder) >= len(t.holders) {
		return false
	}
	for range stretch {
		if !t.forgetOldest(holder) {
			t.holders[holder].trimming = false
			return false
		}
	}
	return true
}

// Trim forgets the least recent of each holder that has more than limit units, until it has at most target. It stops after
// a few hundred steps, so that a request can carry it, and reports whether there is more to do: call it again then.
func (t *Tree) Trim(limit, target int64) (more bool) {
	limit, target = limit*int64(t.unit), min(target, limit)*int64(t.unit)
	t.mu.Lock()
	defer t.mu.Unlock()
	steps := stretch
	for i := range t.holders {
		who := &t.holders[i]
		who.trimming = who.trimming || who.bytes > limit
		for who.trimming {
			if who.bytes <= target {
				who.trimming = false
				break
			}
			if steps == 0 {
				return true
			}
			steps--
			t.forgetOldest(uint32(i))
		}
	}
	return false
}
