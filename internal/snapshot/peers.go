package snapshot

import (
	"context"
	"errors"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// errItself means that an address of a peer is that of this process.
var errItself = errors.New("this is the router itself")

// peers returns the addresses of all other routers in random order, except that those that failed come last.
func (k *Keeper) peers() []string {
	all := slices.Clone(k.config.Peers)
	if k.Others != nil {
		all = append(all, k.Others()...)
	}
	for i := range all {
		all[i] = strings.TrimSuffix(all[i], "/")
	}
	slices.Sort(all)
	all = slices.DeleteFunc(slices.Compact(all), func(peer string) bool { return k.own[peer] })
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	maps.DeleteFunc(k.failures, func(peer string, _ failure) bool { return !slices.Contains(all, peer) })
	slices.SortStableFunc(all, func(a, b string) int { return k.failures[a].until.Compare(k.failures[b].until) })
	return all
}

// first yields the peers that a start asks: those that are known, then those that Joining hears of, and in the end once
// more those that were busy. A peer that is cold or fails does not keep the router from a warm one that it hears of
// later.
func (k *Keeper) first(ctx context.Context) iter.Seq[string] {
	return func(yield func(peer string) bool) {
		known := k.peers()
		for _, peer := range known {
			if !yield(peer) {
				return
			}
		}
		if k.Joining == nil {
			return
		}
		for peer := range k.Joining(ctx) {
			if !slices.Contains(known, peer) && !yield(peer) {
				return
			}
		}
		for _, peer := range k.peers() { // Joining took a while, and most snapshots take less
			if k.failures[peer].busy && !yield(peer) {
				return
			}
		}
	}
}
